// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_TEXT_CORPUS_H_
#define DLIB_RMS_NORM_TEXT_CORPUS_H_

// A text to learn from, as ids of its characters, and how well it can be predicted by counting.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>
#include <dlib/error.h>
#include "hash_of.h"

// ----------------------------------------------------------------------------------------

struct text_corpus
{
    /*!
        WHAT THIS OBJECT REPRESENTS
            A text. A character is one byte: what UTF-8 writes with several bytes is several
            characters. Its id is its place in the alphabet, which is sorted.
    !*/
    std::string alphabet;
    std::vector<unsigned long> training;
    std::vector<unsigned long> held_out;
};

inline std::string read_text(const std::filesystem::path& file)
/*!
    ensures
        - returns the file's text, with each run of white space as one blank.
    throws
        - dlib::error
            It can't be read, is empty, or holds control characters, as a text does not.
!*/
{
    if (std::filesystem::is_directory(file))
        throw dlib::error(file.string() + " is a directory, not a text file.");
    std::ifstream in(file, std::ios::binary);
    if (!in)
        throw dlib::error("Can't open " + file.string() + ".");

    std::string text;
    std::array<char, 1 << 16> piece;
    while (in.read(piece.data(), piece.size()) || in.gcount() > 0)
    {
        for (std::streamsize i = 0; i < in.gcount(); ++i)
        {
            const char c = piece[static_cast<std::size_t>(i)];
            const bool is_white_space = c == ' ' || ('\t' <= c && c <= '\r');
            if (!is_white_space && ((0 <= c && c < ' ') || c == 127))
            {
                throw dlib::error(file.string() + " is not a text file: it has a byte of value " +
                    std::to_string(static_cast<int>(c)) + " in it.");
            }
            if (!is_white_space)
                text += c;
            else if (text.empty() || text.back() != ' ')
                text += ' ';
        }
    }
    if (in.bad())
        throw dlib::error("Can't read " + file.string() + ".");
    if (text.empty())
        throw dlib::error(file.string() + " is empty.");
    return text;
}

inline std::set<std::filesystem::path> find_licences()
/*!
    ensures
        - returns the licence texts that every Debian has, each once though it has several names.
!*/
{
    const std::filesystem::path folder = "/usr/share/common-licenses";
    std::set<std::filesystem::path> files;
    if (std::filesystem::is_directory(folder))
    {
        for (const auto& entry : std::filesystem::directory_iterator(folder))
        {
            if (entry.is_regular_file())
                files.insert(std::filesystem::canonical(entry.path()));
        }
    }
    if (files.empty())
        throw dlib::error(
            "There are no texts in " + folder.string() + ".  Name one with --text FILE.");
    return files;
}

inline text_corpus read_corpus(const std::set<std::filesystem::path>& files, std::size_t least)
/*!
    ensures
        - returns the texts of files one after the other. The last tenth of each is held out.
    throws
        - dlib::error
            A file is not a text, or fewer than `least` characters would be held out.
!*/
{
    std::string training, held_out;
    for (const auto& file : files)
    {
        const std::string text = read_text(file);
        const std::size_t cut = text.size() - text.size() / 10;
        training.append(text, 0, cut);
        held_out.append(text, cut, std::string::npos);
    }
    if (held_out.size() < least)
    {
        throw dlib::error("The text is too short: a tenth of it is " +
            std::to_string(held_out.size()) + " characters, and at least " + std::to_string(least) +
            " have to be held out.");
    }

    text_corpus result;
    std::set<char> characters(training.begin(), training.end());
    characters.insert(held_out.begin(), held_out.end());
    result.alphabet.assign(characters.begin(), characters.end());
    const auto to_ids = [&](const std::string& text)
    {
        std::vector<unsigned long> ids;
        for (char c : text)
            ids.push_back(result.alphabet.find(c));
        return ids;
    };
    result.training = to_ids(training);
    result.held_out = to_ids(held_out);
    return result;
}

inline std::uint64_t hash_of(const text_corpus& text)
{
    std::uint64_t hash = 0;
    for (const auto* ids : {&text.training, &text.held_out})
        hash = hash_of(ids->data(), ids->size() * sizeof(unsigned long), hash);
    return hash;
}

// ----------------------------------------------------------------------------------------

inline std::vector<double> losses_of_counting(const text_corpus& text, std::size_t longest)
/*!
    requires
        - longest <= 6
    ensures
        - returns longest+1 losses in nats per held-out character. The i-th is that of a reader
          who has counted what follows each i characters of the training text. A count of a longer
          context is mixed with those of the shorter ones as Witten and Bell do ("The
          Zero-Frequency Problem", 1991, method C): with n the times that the context was
          seen and t the number of different characters that followed,

              p(c | context) = (count(context, c) + t * p(c | shorter context)) / (n + t)

          and all characters are alike for the shortest.
!*/
{
    struct context
    {
        double times = 0;
        double different = 0;
    };
    // A context of i characters is a number of i bytes, and a 1 above them.
    std::vector<std::unordered_map<std::uint64_t, context>> contexts(longest + 1);
    std::vector<std::unordered_map<std::uint64_t, double>> counts(longest + 1);

    const auto key = [](const std::vector<unsigned long>& ids, std::size_t end, std::size_t size)
    {
        std::uint64_t result = 1;
        for (std::size_t i = end - size; i < end; ++i)
            result = result << 8 | ids[i];
        return result;
    };

    for (std::size_t pos = 0; pos < text.training.size(); ++pos)
    {
        for (std::size_t size = 0; size <= longest && size <= pos; ++size)
        {
            context& c = contexts[size][key(text.training, pos, size)];
            double& count = counts[size][key(text.training, pos + 1, size + 1)];
            c.times += 1;
            c.different += count == 0;
            count += 1;
        }
    }

    std::vector<double> losses(longest + 1);
    for (std::size_t pos = longest; pos < text.held_out.size(); ++pos)
    {
        double p = 1 / static_cast<double>(text.alphabet.size());
        for (std::size_t size = 0; size <= longest; ++size)
        {
            const auto found = contexts[size].find(key(text.held_out, pos, size));
            if (found != contexts[size].end())
            {
                const context& c = found->second;
                const auto count = counts[size].find(key(text.held_out, pos + 1, size + 1));
                const double times = count == counts[size].end() ? 0 : count->second;
                p = (times + c.different * p) / (c.times + c.different);
            }
            losses[size] -= std::log(p);
        }
    }
    for (double& loss : losses)
        loss /= static_cast<double>(text.held_out.size() - longest);
    return losses;
}

#endif // DLIB_RMS_NORM_TEXT_CORPUS_H_

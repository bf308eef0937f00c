// License: Boost Software License   See LICENSE.txt for the full license.
#ifndef DLIB_RMS_NORM_TRANSFORMER_TRAINING_H_
#define DLIB_RMS_NORM_TRANSFORMER_TRAINING_H_

// What a training of a language model is made of: random pieces of text, a learning rate for each
// step, and the loss on the text that is held out.

#include <algorithm>
#include <cmath>
#include <vector>
#include <dlib/numeric_constants.h>
#include <dlib/rand.h>
#include "transformer_layers.h"

namespace transformer
{

    // ----------------------------------------------------------------------------------------

    struct token_batch
    {
        /*!
            WHAT THIS OBJECT REPRESENTS
                Pieces of text one after the other, and for each token the one that follows it.
        !*/
        std::vector<unsigned long> inputs;
        std::vector<unsigned long> targets;

        void add(const std::vector<unsigned long>& text, std::size_t pos, std::size_t length)
        {
            const auto first = text.begin() + static_cast<std::ptrdiff_t>(pos);
            const auto size = static_cast<std::ptrdiff_t>(length);
            inputs.insert(inputs.end(), first, first + size);
            targets.insert(targets.end(), first + 1, first + 1 + size);
        }
    };

    inline token_batch random_batch(dlib::rand& rnd,
        const std::vector<unsigned long>& text,
        std::size_t num_sequences,
        std::size_t length,
        std::size_t part = 0,
        std::size_t num_parts = 1)
    /*!
        requires
            - text.size() > length
            - num_parts divides num_sequences, and part < num_parts.
        ensures
            - draws num_sequences pieces of text and returns that part of them.
    !*/
    {
        const std::size_t size = num_sequences / num_parts;
        token_batch batch;
        for (std::size_t i = 0; i < num_sequences; ++i)
        {
            const std::size_t pos = rnd.get_random_64bit_number() % (text.size() - length);
            if (i / size == part)
                batch.add(text, pos, length);
        }
        return batch;
    }

    // ----------------------------------------------------------------------------------------

    const long num_warm_up_steps = 50;

    inline double learning_rate_at(long step, long num_steps, double highest)
    /*!
        ensures
            - returns the learning rate of this step, counted from 0: it rises for
              num_warm_up_steps steps, whatever num_steps is, and then falls along half a
              wave of a cosine to a twentieth of the highest.
    !*/
    {
        if (step < num_warm_up_steps)
            return highest * static_cast<double>(step + 1) / num_warm_up_steps;
        const double progress = static_cast<double>(step - num_warm_up_steps) /
            static_cast<double>(std::max(1L, num_steps - num_warm_up_steps));
        return highest * (0.05 + 0.95 * (0.5 + 0.5 * std::cos(dlib::pi * progress)));
    }

    // ----------------------------------------------------------------------------------------

    template <typename net_type>
    double loss_on(net_type& net,
        const std::vector<unsigned long>& text,
        std::size_t most_sequences,
        std::size_t length)
    /*!
        requires
            - text.size() > length
            - length is the net's sequence length.
        ensures
            - returns the mean loss of net on at most so many pieces of text that lie evenly over
              it and do not overlap.
    !*/
    {
        const std::size_t num_pieces = (text.size() - 1) / length;
        const std::size_t num = std::min(num_pieces, most_sequences);
        const std::size_t most_at_once = 16;

        double sum = 0;
        for (std::size_t done = 0; done < num;)
        {
            token_batch batch;
            const std::size_t first = done;
            for (; done < num && done < first + most_at_once; ++done)
                batch.add(text, done * num_pieces / num * length, length);
            sum += static_cast<double>(done - first) *
                net.compute_loss(batch.inputs.begin(), batch.inputs.end(), batch.targets.begin());
        }
        return sum / static_cast<double>(num);
    }

    // ----------------------------------------------------------------------------------------

}

#endif // DLIB_RMS_NORM_TRANSFORMER_TRAINING_H_

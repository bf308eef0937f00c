# License: Boost Software License   See LICENSE.txt for the full license.

# Finds dlib and looks in its headers for what decides how this library is built:
#   DLIB_RMS_NORM_DLIB_HAS_ITS_OWN   it has a layer called rms_norm_
#   DLIB_RMS_NORM_DLIB_HAS_USE_CUDA  cuda::use_cuda() tells whether CUDA is on
#   DLIB_RMS_NORM_DLIB_HAS_CUDA      it was built with CUDA

# Global, so that a project which adds this one as a folder can link with dlib too.
find_package(dlib REQUIRED GLOBAL)

get_target_property(rms_norm_dlib_include_dirs dlib::dlib INTERFACE_INCLUDE_DIRECTORIES)
find_path(DLIB_RMS_NORM_DLIB_HEADERS dlib/dnn/layers.h
    HINTS ${rms_norm_dlib_include_dirs}
    REQUIRED)

function(rms_norm_look_in_dlib header pattern variable)
    set(found FALSE)
    if(EXISTS ${DLIB_RMS_NORM_DLIB_HEADERS}/dlib/${header})
        file(STRINGS ${DLIB_RMS_NORM_DLIB_HEADERS}/dlib/${header} lines REGEX "${pattern}")
        if(lines)
            set(found TRUE)
        endif()
    endif()
    set(${variable} ${found} PARENT_SCOPE)
endfunction()

rms_norm_look_in_dlib(dnn/layers.h "class rms_norm_" DLIB_RMS_NORM_DLIB_HAS_ITS_OWN)
rms_norm_look_in_dlib(cuda/tensor.h "cuda::use_cuda\\(\\)" DLIB_RMS_NORM_DLIB_HAS_USE_CUDA)
rms_norm_look_in_dlib(config.h "^#define DLIB_USE_CUDA" DLIB_RMS_NORM_DLIB_HAS_CUDA)

message(STATUS "dlib ${dlib_VERSION} in ${DLIB_RMS_NORM_DLIB_HEADERS}: "
    "own rms_norm_ ${DLIB_RMS_NORM_DLIB_HAS_ITS_OWN}, CUDA ${DLIB_RMS_NORM_DLIB_HAS_CUDA}")

# License: Boost Software License   See LICENSE.txt for the full license.

# Installs the library, its headers, its CMake package and its pkg-config file.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(rms_norm_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dlib_rms_norm)

target_include_directories(dlib_rms_norm INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS dlib_rms_norm EXPORT dlib_rms_norm_targets)
install(EXPORT dlib_rms_norm_targets NAMESPACE dlib:: DESTINATION ${rms_norm_cmake_dir})
install(FILES
    dlib/rms_norm.h
    dlib/rms_norm_export.h
    ${CMAKE_CURRENT_BINARY_DIR}/include/dlib/rms_norm_config.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dlib)
install(FILES
    dlib/dnn/rms_norm.h
    dlib/dnn/rms_norm_abstract.h
    dlib/dnn/rms_norm_file.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dlib/dnn)
install(FILES
    dlib/cuda/rms_norm_arguments.h
    dlib/cuda/rms_norm_float16.h
    dlib/cuda/rms_norm_functions.h
    dlib/cuda/rms_norm_groups.h
    dlib/cuda/rms_norm_pass.h
    dlib/cuda/rms_norm_rows.h
    dlib/cuda/rms_norm_rows_abstract.h
    dlib/cuda/rms_norm_tools.h
    dlib/cuda/rms_norm_tools_abstract.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dlib/cuda)

# ------------------------------------------------------------------------------------------

configure_package_config_file(cmake/dlib_rms_normConfig.cmake.in
    ${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_normConfig.cmake
    INSTALL_DESTINATION ${rms_norm_cmake_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_normConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES
    ${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_normConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_normConfigVersion.cmake
    ${CMAKE_CURRENT_SOURCE_DIR}/cmake/rms_norm_dlib.cmake
    DESTINATION ${rms_norm_cmake_dir})

# ------------------------------------------------------------------------------------------

# The folders in the pkg-config file are relative to the file, so that the installation can be
# moved, unless the user asked for absolute ones.
set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
set(pc_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
    file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
    set(pc_prefix "\${pcfiledir}/${up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()

get_target_property(type dlib_rms_norm TYPE)
if(type STREQUAL SHARED_LIBRARY)
    set(pc_requires_private libhwy)
else()
    set(pc_requires libhwy)
endif()

# The .pc file of a static dlib lacks what that dlib needs, CUDA's libraries among others, so
# they are all named here, in the order that a linker wants.
get_target_property(type dlib::dlib TYPE)
if(type STREQUAL STATIC_LIBRARY)
    set(pc_dlib $<TARGET_FILE:dlib::dlib>)
    get_target_property(libs dlib::dlib INTERFACE_LINK_LIBRARIES)
    string(REGEX REPLACE "\\$<LINK_ONLY:([^>]*)>" "\\1" libs "${libs}")
    foreach(lib IN LISTS libs)
        if(lib MATCHES "Threads")
            string(APPEND pc_dlib " -pthread")
        elseif(lib MATCHES "::")
            string(APPEND pc_dlib " $<TARGET_FILE:${lib}>")
        elseif(lib MATCHES "^[-/]")
            string(APPEND pc_dlib " ${lib}")
        elseif(lib)
            string(APPEND pc_dlib " -l${lib}")
        endif()
    endforeach()
    set(pc_cflags "-I${DLIB_RMS_NORM_DLIB_HEADERS}")
else()
    list(PREPEND pc_requires dlib-1)
endif()
if(DLIB_RMS_NORM_DLIB_HAS_CUDA)
    string(APPEND pc_dlib " $<TARGET_FILE:CUDA::cudart> $<TARGET_FILE:CUDA::cublas>")
    list(JOIN CUDAToolkit_INCLUDE_DIRS " -I" cuda_includes)
    string(APPEND pc_cflags " -I${cuda_includes}")
endif()

string(REPLACE ";" " " pc_requires "${pc_requires}")
configure_file(cmake/dlib_rms_norm.pc.in dlib_rms_norm.pc.in @ONLY)
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_norm.pc
    INPUT ${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_norm.pc.in)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/dlib_rms_norm.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# SPDX-License-Identifier: Apache-2.0
#
# The CUDA backend: built when QN_CUDA is ON or AUTO, nvcc is found and src/cuda has kernels; never
# needed. The only place that names GPU architectures. Everything above src/cuda is plain C.
#
#   QN_CUDA        AUTO (default): build it if that is possible; ON: stop if it is not; OFF
#   QN_CUDA_ARCHS  e.g. "80;90a"; default: what the kernels are written for and nvcc knows

set(QN_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE QN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(QN_CUDA_ARCHS "75;80;86;89;90a" CACHE STRING "GPU architectures to build kernels for")

set(QN_CUDA_BUILT OFF)
if(NOT QN_CUDA)
  return()
endif()

file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
file(GLOB_RECURSE cuda_plain_c CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.c)
if(NOT cuda_kernels)
  if(NOT QN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QN_CUDA=${QN_CUDA}, but this version of quern has no CUDA kernels.")
  endif()
  return()
endif()

include(CheckLanguage)
find_program(QN_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(QN_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${QN_NVCC})
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(NOT QN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QN_CUDA=${QN_CUDA}, but no working nvcc was found "
      "(PATH, CUDA_HOME, /usr/local/cuda).")
  endif()
  message(STATUS "quern: no nvcc found, building without CUDA")
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${QN_CUDA_ARCHS})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

add_library(quern_cuda OBJECT ${cuda_kernels} ${cuda_plain_c})
quern_library_options(quern_cuda)
set_target_properties(quern_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
  CUDA_VISIBILITY_PRESET hidden)
target_compile_definitions(quern_objects PRIVATE QN_BUILD_CUDA=1)
target_sources(quern PRIVATE $<TARGET_OBJECTS:quern_cuda>)
target_sources(quern_static PRIVATE $<TARGET_OBJECTS:quern_cuda>)
# The driver is reached through the runtime, which is linked in: one library file, no CUDA package
# needed on a machine that only uses the CPU.
target_link_libraries(quern PRIVATE CUDA::cudart_static)
target_link_libraries(quern_static PRIVATE CUDA::cudart_static)
set(QN_CUDA_BUILT ON)

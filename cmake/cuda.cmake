# SPDX-License-Identifier: Apache-2.0
#
# The CUDA backend. The only place that names GPU architectures. Everything above the .cu files is
# plain C, and of that only device.c sees a CUDA header (and blas.c that of cuBLASLt, where there is
# one); so all the rest of src/cuda is compiled and tested in every build, and joins the library
# where nvcc is found.
#
#   QN_CUDA        AUTO (default): build it if that is possible; ON: stop if it is not; OFF (default
#                  inside of another project)
#   QN_CUDA_ARCHS  e.g. "80;90a"; default: what the kernels are written for
#   QN_CUDA_PTX    ON (default): beside machine code PTX of the newest architecture without a
#                  letter, for GPUs that do not exist yet
#   QN_CUDA_FAST   OFF (default); ON: _sm75 and _sm80 files are compiled in a fifth of the time, to
#                  slow code: to see that they compile and link, where no GPU will run them. Not
#                  _sm90a files: what becomes of their wgmma hangs on it, and ptxas has its say
#   QN_ONLY        stems of matmul kernel files, e.g. "decode_f16_sm80;tile_q8_sm75": these alone,
#                  for development. Empty (default): all
#
# The suffix of a kernel file says what it is compiled for: _sm75: every architecture; _sm80: those
# from 80 on; _sm90a: 90a alone. A matmul kernel file that is left out leaves its rows out, too:
# select.c and kernel.h see QN_WITHOUT_<STEM>.

set(cuda_default OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(cuda_default AUTO)
endif()
set(QN_CUDA ${cuda_default} CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE QN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(QN_CUDA_ARCHS "75;80;86;89;90a" CACHE STRING "GPU architectures to build kernels for")
option(QN_CUDA_PTX "PTX for GPUs after those of QN_CUDA_ARCHS" ON)
option(QN_CUDA_FAST "Compile most kernels fast, to slow code" OFF)
set(QN_ONLY "" CACHE STRING "Stems of the matmul kernel files to build; empty: all")

quern_glob(cuda_plain_c src/cuda src/cuda/matmul src/cuda/conv src/cuda/rows)
list(FILTER cuda_plain_c EXCLUDE REGEX "/device\\.c$")
file(GLOB cuda_matmul CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/matmul/*.cu)
file(GLOB cuda_others CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/rows/*.cu
  ${PROJECT_SOURCE_DIR}/src/cuda/conv/*.cu ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)

# ---- is there a compiler -------------------------------------------------------------------------

set(QN_CUDA_BUILT OFF)
if(QN_CUDA)
  include(CheckLanguage)
  find_program(QN_NVCC nvcc
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(QN_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${QN_NVCC})
  endif()
  # A sanitized or cross build has a host compiler or flags that nvcc cannot take.
  if(NOT QN_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER AND NOT QN_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    set(QN_CUDA_BUILT ON)
  elseif(NOT QN_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QN_CUDA=${QN_CUDA}, but no working nvcc was found "
      "(PATH, CUDA_HOME, /usr/local/cuda), or this is a sanitized or cross build.")
  else()
    message(STATUS "quern: no nvcc for this build: no CUDA")
  endif()
endif()

if(NOT QN_CUDA_BUILT)
  # The plain C of the backend, for its unit tests.
  if(cuda_plain_c)
    add_library(quern_cuda_plain STATIC ${cuda_plain_c})
    quern_library_options(quern_cuda_plain)
    foreach(source IN LISTS cuda_matmul)
      get_filename_component(stem ${source} NAME_WE)
      string(TOUPPER ${stem} name)
      target_compile_definitions(quern_cuda_plain PRIVATE QN_WITHOUT_${name}=1)
    endforeach()
  endif()
  return()
endif()

# ---- what is compiled for what -------------------------------------------------------------------

set(QN_CUDA_sm75)
set(QN_CUDA_sm80)
set(QN_CUDA_sm90a)
set(codes)
set(newest)
foreach(arch IN LISTS QN_CUDA_ARCHS)
  if(NOT arch MATCHES "^([0-9]+)a?$")
    message(FATAL_ERROR "QN_CUDA_ARCHS: '${arch}' is not like 80 or 90a")
  endif()
  set(number ${CMAKE_MATCH_1})
  if(arch MATCHES "a$")
    list(APPEND codes ${number}1) # as src/cuda/archs.h has them
  else()
    list(APPEND codes ${number}0)
  endif()
  list(APPEND QN_CUDA_sm75 ${arch}-real)
  if(number GREATER_EQUAL 80)
    list(APPEND QN_CUDA_sm80 ${arch}-real)
  endif()
  if(arch STREQUAL "90a")
    list(APPEND QN_CUDA_sm90a 90a-real)
  endif()
  if(NOT newest OR number GREATER newest)
    set(newest ${number})
  endif()
endforeach()
set(ptx 0)
if(QN_CUDA_PTX)
  set(ptx ${newest})
  list(APPEND QN_CUDA_sm75 ${newest}-virtual)
  if(newest GREATER_EQUAL 80)
    list(APPEND QN_CUDA_sm80 ${newest}-virtual)
  endif()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${newest})
enable_language(CUDA)
# Targets that were there before take nothing from that variable, and generators of makefiles ask
# for it wherever CUDA objects are linked.
set_target_properties(quern quern_static PROPERTIES CUDA_ARCHITECTURES ${newest})
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES "") # the C++ library: not for a C program
set(cuda_fast)
if(QN_CUDA_FAST)
  include(CheckCompilerFlag)
  check_compiler_flag(CUDA --Ofast-compile=max QN_HAS_CUDA_FAST) # nvcc 12.9
  if(QN_HAS_CUDA_FAST)
    set(cuda_fast --Ofast-compile=max)
  endif()
endif()

list(LENGTH codes n_codes)
list(JOIN codes "," codes)
# Not for nvcc, which takes a definition with commas for several.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cuda/archs.c PROPERTIES COMPILE_DEFINITIONS
  "QN_CUDA_N_CODE=${n_codes};QN_CUDA_CODE=${codes};QN_CUDA_PTX=${ptx}")
set(cuda_defines)
foreach(source IN LISTS cuda_matmul cuda_others)
  get_filename_component(stem ${source} NAME_WE)
  string(TOUPPER ${stem} name)
  if(NOT stem MATCHES "_(sm75|sm80|sm90a)$")
    message(FATAL_ERROR "${source}: the name does not end in _sm75, _sm80 or _sm90a")
  endif()
  set(class ${CMAKE_MATCH_1})
  if(NOT QN_CUDA_${class} OR
      (QN_ONLY AND source IN_LIST cuda_matmul AND NOT stem IN_LIST QN_ONLY))
    list(APPEND cuda_defines QN_WITHOUT_${name}=1)
  else()
    list(APPEND cuda_${class} ${source})
  endif()
endforeach()

# ---- objects -------------------------------------------------------------------------------------

add_library(quern_cuda OBJECT ${cuda_plain_c} ${PROJECT_SOURCE_DIR}/src/cuda/device.c)
quern_library_options(quern_cuda)
target_compile_definitions(quern_cuda PRIVATE ${cuda_defines})
target_include_directories(quern_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# The dense tier: cuBLASLt is opened when it is first asked for, and never linked.
find_file(QN_CUBLASLT_HEADER cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
if(QN_CUBLASLT_HEADER)
  target_compile_definitions(quern_cuda PRIVATE QN_HAS_CUBLASLT=1)
else()
  message(STATUS "quern: no cublasLt.h: the dense strategy of GPUs is without cuBLASLt")
endif()
set(cuda_objects quern_cuda)

foreach(class sm75 sm80 sm90a)
  if(cuda_${class})
    set(target quern_cuda_${class})
    add_library(${target} OBJECT ${cuda_${class}})
    set_target_properties(${target} PROPERTIES
      CUDA_ARCHITECTURES "${QN_CUDA_${class}}" CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
      CUDA_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
    target_compile_definitions(${target} PRIVATE ${cuda_defines})
    target_include_directories(${target} PRIVATE
      ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    # Contraction is chosen in the source (fmaf, __fmaf_rn): see docs/numerics.md.
    # Nothing of the C++ library is needed.
    target_compile_options(${target} PRIVATE --fmad=false -Xcompiler=-Wall,-Wextra
      -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
      $<$<BOOL:${QN_WERROR}>:-Xcompiler=-Werror>)
    if(NOT class STREQUAL "sm90a")
      target_compile_options(${target} PRIVATE ${cuda_fast})
    endif()
    list(APPEND cuda_objects ${target})
  endif()
endforeach()

set_source_files_properties(src/api/backend.c PROPERTIES COMPILE_DEFINITIONS QN_BUILD_CUDA=1)
foreach(library quern quern_static)
  foreach(objects IN LISTS cuda_objects)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
  # The driver is reached through the runtime, which is linked in and binds it when it is first
  # asked: one library file, no CUDA package needed on a machine that only uses the CPU.
  target_link_libraries(${library} PRIVATE CUDA::cudart_static)
endforeach()

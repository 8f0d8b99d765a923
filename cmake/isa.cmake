# SPDX-License-Identifier: Apache-2.0
#
# The only place that spells -m flags. A CPU source whose file name carries an ISA token
# (x86_avx2.c, x86_avx2_int8.c, rows_x86_vnni512.c, arm_dotprod.c) is compiled with that bundle's
# flags, or left out when the target architecture differs or the compiler lacks a flag, or, with
# QN_ISA_KERNELS=HERE, this machine what the flag stands for. Every other source is portable and
# sees no -m flag at all.
#
# What the code sees, on every library source:
#   QN_BUILD_X86=1, QN_BUILD_ARM=1           all bundles of that architecture are compiled in
#   QN_BUILD_X86_AVX2=1, ... one per bundle  that bundle is compiled in
# A bare `cc -std=c11` defines none of them, so kernels.inc keeps its portable rows only.

include(CheckCCompilerFlag)

# Bundles are cumulative where the hardware is: avx2 < avx512 < vnni512 < bf16512 < fp16512, amx.
set(QN_ISA_x86_avx2 -mavx2 -mfma -mf16c)
set(QN_ISA_x86_avxvnni ${QN_ISA_x86_avx2} -mavxvnni)
set(QN_ISA_x86_avx512 ${QN_ISA_x86_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd)
set(QN_ISA_x86_vnni512 ${QN_ISA_x86_avx512} -mavx512vnni -mavx512vbmi)
set(QN_ISA_x86_bf16512 ${QN_ISA_x86_vnni512} -mavx512bf16)
set(QN_ISA_x86_fp16512 ${QN_ISA_x86_bf16512} -mavx512fp16)
set(QN_ISA_x86_amx ${QN_ISA_x86_bf16512} -mamx-tile -mamx-int8 -mamx-bf16)
set(QN_ISA_arm_neon)
set(QN_ISA_arm_dotprod -march=armv8.2-a+dotprod+fp16)
set(QN_ISA_arm_i8mm -march=armv8.6-a+dotprod+fp16+i8mm+bf16)

set(QN_ISA_BUNDLES_x86 avx2 avxvnni avx512 vnni512 bf16512 fp16512 amx)
set(QN_ISA_BUNDLES_arm neon dotprod i8mm)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(QN_ARCH x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(QN_ARCH arm)
else()
  set(QN_ARCH portable)
endif()
if(NOT QN_ISA_KERNELS)
  set(QN_ARCH portable)
endif()

# A sanitized kernel that cannot run here finds nothing, and takes long to compile. Flags of x86 are
# called what Linux calls the feature, but for _ and -.
set(cpu_features)
if(QN_ISA_KERNELS STREQUAL "HERE" AND QN_ARCH STREQUAL "x86" AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu_features REGEX "^flags" LIMIT_COUNT 1)
  string(REPLACE "_" "" cpu_features "${cpu_features} ")
endif()

function(quern_runs_here out flags)
  set(runs ON)
  foreach(flag IN LISTS flags)
    string(REGEX REPLACE "^-m|-" "" feature ${flag})
    if(cpu_features AND NOT cpu_features MATCHES " ${feature} ")
      set(runs OFF)
    endif()
  endforeach()
  set(${out} ${runs} PARENT_SCOPE)
endfunction()

# Without optimisation, or with every variable in the debug information, what is inlined into a
# kernel and unrolled there takes minutes and gigabytes to compile, also in the debug build of a
# program that quern is a part of.
set(QN_KERNEL_OPTIONS
  "$<$<OR:$<CONFIG:Debug>,$<CONFIG:>>:-O1>;$<$<CONFIG:Debug>:-g1>" CACHE STRING
  "Compiler options of kernels that need instruction-set flags")
mark_as_advanced(QN_KERNEL_OPTIONS)

set(QN_ISA_DEFINES)
set(QN_ISA_BUILT)
set(all_bundles ON)
foreach(bundle IN LISTS QN_ISA_BUNDLES_${QN_ARCH})
  quern_runs_here(runs "${QN_ISA_${QN_ARCH}_${bundle}}")
  if(NOT runs)
    set(all_bundles OFF)
    message(STATUS "quern: this machine cannot run ${bundle} kernels: left out")
    continue()
  endif()
  string(REPLACE ";" " " flags "${QN_ISA_${QN_ARCH}_${bundle}}")
  if(flags)
    check_c_compiler_flag("${flags}" QN_HAS_${QN_ARCH}_${bundle})
  else()
    set(QN_HAS_${QN_ARCH}_${bundle} ON)
  endif()
  if(QN_HAS_${QN_ARCH}_${bundle})
    string(TOUPPER "QN_BUILD_${QN_ARCH}_${bundle}=1" define)
    list(APPEND QN_ISA_DEFINES ${define})
    list(APPEND QN_ISA_BUILT ${bundle})
  else()
    set(all_bundles OFF)
    message(STATUS "quern: the compiler lacks '${flags}': no ${bundle} kernels")
  endif()
endforeach()
if(QN_ISA_BUILT AND all_bundles)
  string(TOUPPER "QN_BUILD_${QN_ARCH}=1" define)
  list(APPEND QN_ISA_DEFINES ${define})
endif()

# Keeps in `out` the sources that can be compiled here and gives the ISA files their flags.
function(quern_isa_sources out)
  set(kept)
  foreach(source IN LISTS ARGN)
    get_filename_component(name ${source} NAME_WE)
    if(name MATCHES "(^|_)(x86|arm)_([a-z0-9]+)")
      set(arch ${CMAKE_MATCH_2})
      set(bundle ${CMAKE_MATCH_3})
      if(NOT bundle IN_LIST QN_ISA_BUNDLES_${arch})
        message(FATAL_ERROR "${source}: no ISA bundle '${arch}_${bundle}' in cmake/isa.cmake")
      endif()
      if(NOT arch STREQUAL QN_ARCH OR NOT bundle IN_LIST QN_ISA_BUILT)
        continue()
      endif()
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "${QN_ISA_${arch}_${bundle}};${QN_KERNEL_OPTIONS}")
    endif()
    list(APPEND kept ${source})
  endforeach()
  set(${out} ${kept} PARENT_SCOPE)
endfunction()

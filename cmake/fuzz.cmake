# SPDX-License-Identifier: Apache-2.0
# One libFuzzer program per fuzz/*.c, named after its file. The library is instrumented, too.

if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "QN_FUZZ needs clang: -DCMAKE_C_COMPILER=clang (or the preset 'fuzz')")
endif()
# But for kernels, which have no branch for a fuzzer to find.
set(covered ${library_sources})
list(FILTER covered EXCLUDE REGEX "/src/cpu/.*(scalar|x86_|arm_)")
set_property(SOURCE ${covered} APPEND PROPERTY COMPILE_OPTIONS -fsanitize=fuzzer-no-link)
target_link_options(quern PRIVATE -fsanitize=fuzzer-no-link)
target_link_options(quern_static INTERFACE -fsanitize=fuzzer-no-link)

quern_glob(fuzz_sources fuzz)
add_custom_target(fuzzers)
foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  quern_code_options(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  target_compile_definitions(${name} PRIVATE ${QN_ISA_DEFINES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE quern_static Threads::Threads m)
  add_dependencies(fuzzers ${name})
endforeach()

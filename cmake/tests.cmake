# SPDX-License-Identifier: Apache-2.0
# The test programs and their ctest labels: unit, api, checkpoint (cmocka, one program per file),
# kernel (the quern-check sweep), abi, tree (layers, names, sizes, docs), consumer, bare.

option(QN_QUICK "Run the short form of the sweep (sanitizer and emulated builds)" OFF)

# The oracle: plain loops in double. Never shipped, linked by tests and benchmarks only.
quern_glob(ref_sources src/ref)
if(ref_sources)
  add_library(quern_ref STATIC ${ref_sources})
  quern_code_options(quern_ref)
  target_include_directories(quern_ref PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(quern_ref PRIVATE quern_static)
else()
  add_library(quern_ref INTERFACE)
endif()

# ---- quern-check ---------------------------------------------------------------------------------

quern_glob(harness_sources test/harness)
list(FILTER harness_sources EXCLUDE REGEX "/main\\.c$")
quern_glob(case_sources test/kernel)
set(check_main ${PROJECT_SOURCE_DIR}/test/harness/main.c)
if(harness_sources)
  add_library(quern_harness STATIC ${harness_sources})
  quern_internal_program(quern_harness)
  set(harness quern_harness)
endif()
if(EXISTS ${check_main})
  add_executable(quern-check ${check_main} ${case_sources})
  quern_internal_program(quern-check ${harness})
  set_target_properties(quern-check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  add_test(NAME kernel.sweep COMMAND quern-check $<$<BOOL:${QN_QUICK}>:--quick>
    COMMAND_EXPAND_LISTS)
  set_tests_properties(kernel.sweep PROPERTIES LABELS kernel TIMEOUT 900)
endif()

# ---- cmocka programs -----------------------------------------------------------------------------

if(CMAKE_CROSSCOMPILING)
  return()
endif()

find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(cmocka IMPORTED_TARGET cmocka)
endif()
if(cmocka_FOUND)
  foreach(area unit api checkpoint)
    quern_glob(sources test/${area})
    foreach(source IN LISTS sources)
      get_filename_component(name ${source} NAME_WE)
      set(program test_${area}_${name})
      add_executable(${program} ${source})
      quern_internal_program(${program} ${harness} PkgConfig::cmocka)
      target_compile_definitions(${program} PRIVATE
        QN_TEST_DATA="${PROJECT_SOURCE_DIR}/test/data")
      set_target_properties(${program} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
      add_test(NAME ${area}.${name} COMMAND ${program})
      set_tests_properties(${area}.${name} PROPERTIES LABELS ${area} TIMEOUT 300)
    endforeach()
  endforeach()
elseif(QN_TESTS STREQUAL "AUTO")
  message(STATUS "quern: no cmocka found, the unit and API tests are left out")
else()
  message(FATAL_ERROR "QN_TESTS=${QN_TESTS} needs cmocka (Debian: libcmocka-dev)")
endif()

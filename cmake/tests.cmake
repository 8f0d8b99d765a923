# SPDX-License-Identifier: Apache-2.0
# The test programs and their ctest labels: unit, api, checkpoint (cmocka, one program per file),
# kernel (the quern-check sweep), abi, tree (layers, names, sizes, docs), consumer, bare.

set(QN_SWEEP "" CACHE STRING "Options of the sweep, e.g. --quick (sanitizer and emulated builds)")
set(QN_TESTS_ONLY "." CACHE STRING "Regular expression: tests of other names are not made")

# Is this test made? A race takes two threads: ThreadSanitizer is for programs whose text has them.
function(quern_is_tested out name)
  set(tested OFF)
  if(name MATCHES "${QN_TESTS_ONLY}")
    set(tested ON)
  endif()
  if(tested AND QN_SANITIZE STREQUAL "thread" AND ARGN)
    file(STRINGS ${ARGN} threads LIMIT_COUNT 1
      REGEX "thread|contexts\\.h|ctx_(make|start)\\(.*[2-9a-z]\\)")
    if(NOT threads)
      set(tested OFF)
    endif()
  endif()
  set(${out} ${tested} PARENT_SCOPE)
endfunction()

# One thread computes what is expected and compares: a race with it would be one of the next call in
# the library, too, and looking for it here takes longer than the work.
function(quern_single_thread target)
  if(QN_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fno-sanitize=thread)
  endif()
endfunction()

# The oracle: plain loops in double. Never shipped, linked by tests and benchmarks only.
quern_glob(ref_sources src/ref)
if(ref_sources)
  add_library(quern_ref STATIC ${ref_sources})
  quern_code_options(quern_ref)
  target_include_directories(quern_ref PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(quern_ref PRIVATE quern_static)
  # gcc 12.2 for aarch64 dies in its vectoriser on some of these loops (vect_transform_reduction);
  # sums in double are not vectorised anyway, since their order is what it is.
  target_compile_options(quern_ref PRIVATE -fno-tree-vectorize)
  quern_single_thread(quern_ref)
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
  quern_single_thread(quern_harness)
  set(harness quern_harness)
endif()
if(EXISTS ${check_main})
  add_executable(quern-check ${check_main} ${case_sources})
  quern_internal_program(quern-check ${harness})
  quern_single_thread(quern-check)
  set_target_properties(quern-check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  # COST: the longest begin first. A case that hangs is found by the sweep itself.
  add_test(NAME kernel.sweep COMMAND quern-check ${QN_SWEEP})
  set_tests_properties(kernel.sweep PROPERTIES LABELS kernel TIMEOUT 3600 COST 100)
  # A CPU without AVX: no file that every machine runs was compiled to its instructions.
  find_program(QN_QEMU_X86_64 qemu-x86_64)
  quern_is_tested(tested kernel.without_avx)
  if(tested AND QN_QEMU_X86_64 AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND NOT QN_SANITIZE)
    add_test(NAME kernel.without_avx COMMAND ${QN_QEMU_X86_64} -cpu Nehalem
      $<TARGET_FILE:quern-check> --quick --filter api.grouped)
    set_tests_properties(kernel.without_avx PROPERTIES LABELS kernel TIMEOUT 900
      PASS_REGULAR_EXPRESSION "[1-9][0-9]* cases, 0 failed, seed 1, isa portable")
  endif()
endif()

# Is the row that a plan chooses the fastest of the table? Built by its name, run by hand.
add_executable(quern-rows EXCLUDE_FROM_ALL bench/rows.c)
quern_internal_program(quern-rows)
set_target_properties(quern-rows PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

# Structs that cross the ABI keep their layout: checked by compiling.
if(EXISTS ${PROJECT_SOURCE_DIR}/test/abi/layout.c)
  add_library(abi_layout OBJECT test/abi/layout.c)
  quern_code_options(abi_layout)
  target_include_directories(abi_layout PRIVATE ${PROJECT_SOURCE_DIR}/include)
endif()

# The rest runs programs of this machine and needs its libraries.
if(CMAKE_CROSSCOMPILING)
  return()
endif()

# ---- smaller machines ----------------------------------------------------------------------------

# What a test of an operation says on one machine it must say on all: such tests run once more as on
# machines with fewer instructions (QUERN_ISA; test/isa/machine.c takes the others away from library
# and test). isa.NAME.TEST, label "once": no compiler's flag changes what they are for. A machine
# without these features skips them.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(smaller_machines portable avx2 avx_vnni avx512 vnni512 avx_vnni,bf16_512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(smaller_machines portable neon dotprod)
else()
  set(smaller_machines)
endif()
add_executable(quern-under test/isa/under.c)
quern_internal_program(quern-under)
set(QN_WRAPS OFF)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux") # GNU and LLVM linkers
  set(QN_WRAPS ON)
endif()

# Its program sees the machine that QUERN_ISA leaves. The library is the static one.
function(quern_smaller_machine target)
  if(QN_WRAPS)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/test/isa/machine.c)
    target_link_options(${target} PRIVATE -Wl,--wrap=qni_cpuid_detect)
  endif()
endfunction()

# The test `name` (its label: its first word) under every smaller machine.
function(quern_smaller_machines name)
  cmake_parse_arguments(PARSE_ARGV 1 a "" "WORKING_DIRECTORY" "COMMAND")
  foreach(isa IN LISTS smaller_machines)
    string(REPLACE "," "_" word ${isa})
    quern_is_tested(tested isa.${word}.${name})
    if(NOT tested)
      continue()
    endif()
    set(folder ${PROJECT_BINARY_DIR})
    if(a_WORKING_DIRECTORY)
      set(folder ${a_WORKING_DIRECTORY}/${word})
      file(MAKE_DIRECTORY ${folder})
    endif()
    add_test(NAME isa.${word}.${name} COMMAND quern-under ${isa} ${a_COMMAND}
      WORKING_DIRECTORY ${folder})
    set_tests_properties(isa.${word}.${name} PROPERTIES LABELS "isa;once" TIMEOUT 900
      SKIP_RETURN_CODE 77)
  endforeach()
endfunction()

# ---- cmocka programs -----------------------------------------------------------------------------

find_package(PkgConfig)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(cmocka IMPORTED_TARGET cmocka)
endif()
if(cmocka_FOUND)
  foreach(area unit api checkpoint)
    quern_glob(sources test/${area})
    foreach(source IN LISTS sources)
      get_filename_component(name ${source} NAME_WE)
      quern_is_tested(tested ${area}.${name} ${source})
      if(NOT tested)
        continue()
      endif()
      if(name STREQUAL "nccl" AND QN_CUDA_BUILT) # its own CUDA would be a second one
        continue()
      endif()
      set(program test_${area}_${name})
      add_executable(${program} ${source})
      set(backend)
      if(name MATCHES "^cuda_" AND TARGET quern_cuda_plain)
        set(backend quern_cuda_plain) # else it is in the library
      endif()
      quern_internal_program(${program} ${harness} ${backend} PkgConfig::cmocka)
      if(name STREQUAL "inits") # opens the shared library as a program in another language does
        add_dependencies(${program} quern)
        target_compile_definitions(${program} PRIVATE QN_TEST_LIBRARY="$<TARGET_FILE:quern>")
        target_link_libraries(${program} PRIVATE ${CMAKE_DL_LIBS})
      endif()
      if(name STREQUAL "nccl") # over threads: a NCCL and a CUDA of its own
        target_include_directories(${program} SYSTEM BEFORE PRIVATE
          ${PROJECT_SOURCE_DIR}/test/api/fake_nccl)
      endif()
      if(name STREQUAL "cli_fit") # a pure part of the command
        target_sources(${program} PRIVATE cli/fit.c)
        target_link_libraries(${program} PRIVATE m)
      endif()
      target_compile_definitions(${program} PRIVATE
        QN_TEST_DATA="${PROJECT_SOURCE_DIR}/test/data")
      set_target_properties(${program} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
      add_test(NAME ${area}.${name} COMMAND ${program})
      set_tests_properties(${area}.${name} PROPERTIES LABELS ${area} TIMEOUT 900)
      file(STRINGS ${source} sees_machine LIMIT_COUNT 1
        REGEX "api\\.h|contexts\\.h|ctx_create")
      if(name STREQUAL "scratch") # walks through them itself
        set(sees_machine)
      endif()
      if(sees_machine AND QN_WRAPS AND NOT QN_SANITIZE)
        quern_smaller_machine(${program})
        quern_smaller_machines(${area}.${name} COMMAND $<TARGET_FILE:${program}>)
      endif()
    endforeach()
  endforeach()
elseif(QN_TESTS STREQUAL "AUTO")
  message(STATUS "quern: no cmocka found, the unit and API tests are left out")
else()
  message(FATAL_ERROR "QN_TESTS=${QN_TESTS} needs cmocka (Debian: libcmocka-dev)")
endif()

# ---- what needs a GPU: label gpu, 77 where there is none -----------------------------------------

if(QN_CUDA_BUILT)
  quern_glob(gpu_sources test/gpu)
  foreach(source IN LISTS gpu_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(test_gpu_${name} ${source})
    quern_internal_program(test_gpu_${name})
    target_include_directories(test_gpu_${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    set_target_properties(test_gpu_${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
    add_test(NAME gpu.${name} COMMAND test_gpu_${name})
    set_tests_properties(gpu.${name} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
  # What launchers work out on the host, which needs none.
  add_executable(test_unit_cuda_decode_plan ${PROJECT_SOURCE_DIR}/test/unit/cuda_decode_plan.cu)
  target_include_directories(test_unit_cuda_decode_plan PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(test_unit_cuda_decode_plan PRIVATE cuda_std_17)
  set_target_properties(test_unit_cuda_decode_plan PROPERTIES
    CUDA_ARCHITECTURES ${newest} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
  add_test(NAME unit.cuda_decode_plan COMMAND test_unit_cuda_decode_plan)
  set_tests_properties(unit.cuda_decode_plan PROPERTIES LABELS unit TIMEOUT 300)
endif()

# ---- examples: whole programs over the public headers, which end with status 0 -------------------

quern_glob(example_sources examples)
foreach(source IN LISTS example_sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(example_${name} ${source})
  quern_code_options(example_${name})
  target_link_libraries(example_${name} PRIVATE quern)
  set_target_properties(example_${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  add_test(NAME example.${name} COMMAND example_${name})
  set_tests_properties(example.${name} PROPERTIES LABELS example TIMEOUT 300)
  if(QN_WRAPS AND NOT QN_SANITIZE)
    add_executable(example_${name}_smaller ${source})
    quern_internal_program(example_${name}_smaller)
    set_target_properties(example_${name}_smaller PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
    quern_smaller_machine(example_${name}_smaller)
    quern_smaller_machines(example.${name} COMMAND
      $<TARGET_FILE:example_${name}_smaller>
      WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/examples) # they may write files of one name
  endif()
endforeach()

# The engine for language models, on small models that the test makes. It needs cJSON, as the
# command does.
if(TARGET PkgConfig::cjson)
  quern_glob(llm_sources examples/llm)
  set(llm_ranks ${PROJECT_SOURCE_DIR}/examples/llm/ranks.c)
  list(REMOVE_ITEM llm_sources ${llm_ranks})
  add_library(example_llm_parts OBJECT ${llm_sources})
  quern_code_options(example_llm_parts)
  target_link_libraries(example_llm_parts PUBLIC quern PkgConfig::cjson m)
  # The library's own sums have no fused operations, so that bits are equal everywhere; attention's
  # take half the time with them.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/examples/llm/attention.c
    PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
  # llm, and llm-openmpi and llm-mpich where these are: they share all but what joins the processes.
  set(llm_programs)
  foreach(mpi none openmpi mpich)
    if(mpi STREQUAL none)
      set(target example_llm)
      set(name llm)
    elseif(TARGET quern_${mpi})
      set(target example_llm_${mpi})
      set(name llm-${mpi})
      list(APPEND llm_programs $<TARGET_FILE:${target}>)
    else()
      continue()
    endif()
    add_executable(${target} ${llm_ranks})
    quern_code_options(${target})
    target_link_libraries(${target} PRIVATE example_llm_parts)
    set_target_properties(${target} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
    if(TARGET quern_${mpi})
      target_compile_definitions(${target} PRIVATE LLM_MPI)
      target_include_directories(${target} SYSTEM PRIVATE ${${mpi}_INCLUDE_DIRS})
      target_link_libraries(${target} PRIVATE PkgConfig::${mpi})
    endif()
  endforeach()
endif()

# ---- the command ---------------------------------------------------------------------------------

# test/cli/*.sh get the path of the command; what they write goes to a folder of their own.
if(TARGET quern_cli)
  quern_is_tested(tested hostile.campaign)
  if(tested)
    add_test(NAME hostile.campaign
      COMMAND ${PROJECT_SOURCE_DIR}/test/hostile/campaign.sh $<TARGET_FILE:quern_cli>)
    set_tests_properties(hostile.campaign PROPERTIES LABELS cli TIMEOUT 900 COST 40
      SKIP_RETURN_CODE 77)
  endif()
  file(GLOB cli_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/test/cli/*.sh)
  foreach(script IN LISTS cli_tests)
    get_filename_component(name ${script} NAME_WE)
    quern_is_tested(tested cli.${name})
    if(NOT tested)
      continue()
    endif()
    set(folder ${PROJECT_BINARY_DIR}/test/cli/${name})
    file(MAKE_DIRECTORY ${folder})
    add_test(NAME cli.${name} COMMAND ${script} $<TARGET_FILE:quern_cli>
      WORKING_DIRECTORY ${folder})
    set_tests_properties(cli.${name} PROPERTIES LABELS cli TIMEOUT 900 COST 40
      SKIP_RETURN_CODE 77)
    if(name STREQUAL "plots") # of records: the command has no part in it
      set_tests_properties(cli.${name} PROPERTIES LABELS "cli;once")
    endif()
    if(name STREQUAL "commands" AND NOT QN_SANITIZE) # of the others few depend on the machine
      quern_smaller_machines(cli.${name} COMMAND ${script} $<TARGET_FILE:quern_cli>
        WORKING_DIRECTORY ${folder})
    endif()
  endforeach()
endif()

# ---- an oracle that is not ours ------------------------------------------------------------------

# test/oracle/*.py compare with ONNX Runtime through quern-replay; 77 = it is not installed.
find_program(QN_PYTHON python3)
set(oracle_python ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
if(NOT EXISTS ${oracle_python})
  set(oracle_python ${QN_PYTHON})
endif()
if(QN_PYTHON AND NOT QN_SANITIZE)
  add_executable(quern-replay ${PROJECT_SOURCE_DIR}/test/oracle/replay.c)
  quern_internal_program(quern-replay)
  file(GLOB oracle_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/test/oracle/test_*.py)
  # numpy and the safetensors package against our readers and writers.
  list(APPEND oracle_tests ${PROJECT_SOURCE_DIR}/test/checkpoint/interop.py)
  foreach(script IN LISTS oracle_tests)
    get_filename_component(name ${script} NAME_WE)
    string(REPLACE "test_" "" name oracle.${name})
    quern_is_tested(tested ${name})
    if(NOT tested)
      continue()
    endif()
    add_test(NAME ${name} COMMAND ${oracle_python} ${script})
    set_tests_properties(${name} PROPERTIES LABELS oracle TIMEOUT 600 SKIP_RETURN_CODE 77
      ENVIRONMENT "QUERN_LIBRARY=$<TARGET_FILE:quern>;QUERN_REPLAY=$<TARGET_FILE:quern-replay>")
  endforeach()
endif()

# ---- the Python package --------------------------------------------------------------------------

# On the library of this build; 77 = numpy is not installed.
if(QN_PYTHON AND NOT QN_SANITIZE)
  quern_is_tested(tested python.tests)
  if(tested)
    add_test(NAME python.tests COMMAND ${oracle_python} ${PROJECT_SOURCE_DIR}/python/tests/run.py)
    set_tests_properties(python.tests PROPERTIES LABELS python TIMEOUT 900 SKIP_RETURN_CODE 77
      ENVIRONMENT "QUERN_LIBRARY=$<TARGET_FILE:quern>")
  endif()
endif()

# libquern_ort.so in ONNX Runtime, beside its own provider; 77 = it is not installed.
if(QN_PYTHON AND NOT QN_SANITIZE AND TARGET quern_ort)
  quern_is_tested(tested python.ort)
  if(tested)
    add_test(NAME python.ort COMMAND ${oracle_python} ${PROJECT_SOURCE_DIR}/python/tests/run.py
      ort_encoder ort_integers ort_products ort_sessions ort_tables)
    set_tests_properties(python.ort PROPERTIES LABELS python TIMEOUT 900 SKIP_RETURN_CODE 77
      ENVIRONMENT "QUERN_LIBRARY=$<TARGET_FILE:quern>")
  endif()
endif()

if(QN_PYTHON AND TARGET example_llm)
  quern_is_tested(tested example.llm)
  if(tested)
    add_test(NAME example.llm COMMAND ${oracle_python}
      ${PROJECT_SOURCE_DIR}/test/llm/small_models.py $<TARGET_FILE:example_llm>)
    set_tests_properties(example.llm PROPERTIES LABELS example TIMEOUT 900 SKIP_RETURN_CODE 77)
    add_test(NAME example.llm_ranks COMMAND ${oracle_python}
      ${PROJECT_SOURCE_DIR}/test/llm/ranks.py $<TARGET_FILE:example_llm> ${llm_programs})
    set_tests_properties(example.llm_ranks PROPERTIES LABELS example TIMEOUT 900
      SKIP_RETURN_CODE 77)
  endif()
endif()

# ---- the tree, the ABI, what is installed --------------------------------------------------------

# Label "once": independent of compiler flags, so the clang and sanitizer builds leave them out.
function(quern_tree_test name)
  quern_is_tested(tested ${name})
  if(NOT tested)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  string(REGEX REPLACE "\\..*" "" label ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${label};once" TIMEOUT 1800)
endfunction()

if(QN_PYTHON)
  quern_tree_test(tree.checkers ${QN_PYTHON} tools/test_checkers.py)
  quern_tree_test(tree.layers ${QN_PYTHON} tools/check_layers.py
    --archive $<TARGET_FILE:quern_static> --shared $<TARGET_FILE:quern>)
  quern_tree_test(tree.names ${QN_PYTHON} tools/check_names.py
    --archive $<TARGET_FILE:quern_static> --shared $<TARGET_FILE:quern>)
  if(TARGET quern-check AND TARGET quern_cli)
    quern_tree_test(tree.kernels ${QN_PYTHON} tools/find_kernel.py --check
      --tests $<TARGET_FILE:quern-check> --command $<TARGET_FILE:quern_cli>)
  endif()
  # The limit is that of the library without CUDA.
  set(library_of_cpus)
  if(NOT QN_CUDA_BUILT)
    set(library_of_cpus --archive $<TARGET_FILE:quern_static>)
  endif()
  quern_tree_test(tree.sizes ${QN_PYTHON} tools/check_sizes.py ${library_of_cpus})
  quern_tree_test(tree.docs ${QN_PYTHON} tools/gen_docs.py --check)
  quern_tree_test(tree.links ${QN_PYTHON} tools/check_links.py)
endif()

quern_tree_test(abi.headers test/abi/headers.sh ${PROJECT_SOURCE_DIR})
quern_tree_test(api.dlpack_cxx test/api/dlpack_cxx.sh ${PROJECT_SOURCE_DIR})
if(TEST api.dlpack_cxx)
  set_tests_properties(api.dlpack_cxx PROPERTIES SKIP_RETURN_CODE 77)
endif()
quern_tree_test(api.mpi test/api/mpi.sh ${PROJECT_SOURCE_DIR} $<TARGET_FILE:quern>
  "$<$<TARGET_EXISTS:quern_cli>:$<TARGET_FILE:quern_cli>>")
if(TEST api.mpi)
  set_tests_properties(api.mpi PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)
endif()
if(QN_PYTHON AND TARGET test_api_sentences)
  file(GLOB worded ${PROJECT_SOURCE_DIR}/src/api/validate_*.c)
  foreach(name check plan ops prepare)
    list(APPEND worded ${PROJECT_SOURCE_DIR}/src/api/${name}.c)
  endforeach()
  quern_tree_test(api.sentences_all ${QN_PYTHON} test/api/sentences.py
    $<TARGET_FILE:test_api_sentences> ${worded})
endif()
quern_tree_test(abi.symbols test/abi/symbols.sh $<TARGET_FILE:quern> test/abi/symbols.txt
  include/quern)

if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  quern_tree_test(bare.gcc test/bare.sh gcc ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/bare/gcc)
  quern_tree_test(bare.clang test/bare.sh clang ${PROJECT_SOURCE_DIR}
    ${PROJECT_BINARY_DIR}/bare/clang)
  foreach(compiler gcc clang)
    if(TEST bare.${compiler})
      set_tests_properties(bare.${compiler} PROPERTIES COST 50)
    endif()
  endforeach()
endif()

quern_tree_test(consumer.generators test/consumer/generators.sh ${PROJECT_SOURCE_DIR}
  ${PROJECT_BINARY_DIR}/consumer/generators)
if(TEST consumer.generators)
  set_tests_properties(consumer.generators PROPERTIES COST 60)
endif()

set(consumers install pkg-config-shared pkg-config-static find-package subdirectory readme)
if(TARGET quern_cli)
  list(APPEND consumers command)
endif()
foreach(how IN LISTS consumers)
  quern_tree_test(consumer.${how} test/consumer/run.sh ${how} ${PROJECT_SOURCE_DIR}
    ${PROJECT_BINARY_DIR})
  if(NOT TEST consumer.${how})
    continue()
  elseif(how STREQUAL "install")
    set_tests_properties(consumer.${how} PROPERTIES FIXTURES_SETUP installed)
  elseif(how STREQUAL "subdirectory")
    set_tests_properties(consumer.${how} PROPERTIES COST 90)
  else()
    set_tests_properties(consumer.${how} PROPERTIES FIXTURES_REQUIRED installed)
  endif()
endforeach()

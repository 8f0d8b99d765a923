# SPDX-License-Identifier: Apache-2.0
# The target `peers`: programs that let `quern bench --peers` time other libraries beside ours
# (bench/peer.h). Each is built where its library is found; nothing else needs them, and neither the
# library nor the command links what they link.

if(NOT TARGET quern_cli)
  return()
endif()
add_custom_target(peers)

function(quern_peer name)
  add_executable(peer_${name} EXCLUDE_FROM_ALL bench/peer_main.c bench/peer_${name}.c)
  quern_code_options(peer_${name})
  set_target_properties(peer_${name} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/peers)
  target_link_libraries(peer_${name} PRIVATE PkgConfig::cjson m ${ARGN})
  add_dependencies(peers peer_${name})
endfunction()

find_path(QN_OPENBLAS_HEADER openblas_config.h PATH_SUFFIXES openblas)
find_library(QN_OPENBLAS openblas)
if(QN_OPENBLAS_HEADER AND QN_OPENBLAS)
  quern_peer(openblas ${QN_OPENBLAS})
  target_include_directories(peer_openblas SYSTEM PRIVATE ${QN_OPENBLAS_HEADER})
else()
  add_custom_command(TARGET peers COMMENT "" COMMAND ${CMAKE_COMMAND} -E echo
    "quern: no peer openblas: no library or header (Debian: libopenblas-dev)")
endif()

find_path(QN_ONEDNN_HEADER oneapi/dnnl/dnnl_version.h)
find_library(QN_ONEDNN dnnl)
find_package(OpenMP COMPONENTS C QUIET)
set(version)
if(QN_ONEDNN_HEADER)
  file(STRINGS ${QN_ONEDNN_HEADER}/oneapi/dnnl/dnnl_version.h version
    REGEX "define DNNL_VERSION_MAJOR 2$")
endif()
if(version AND QN_ONEDNN AND OpenMP_C_FOUND)
  quern_peer(onednn ${QN_ONEDNN} OpenMP::OpenMP_C)
else()
  add_custom_command(TARGET peers COMMENT "" COMMAND ${CMAKE_COMMAND} -E echo
    "quern: no peer onednn: no oneDNN 2 or no OpenMP (Debian: libdnnl-dev)")
endif()

# In Python: the interpreter of build/peers-venv where there is one.
foreach(name onnxruntime torch llama.cpp)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/peers.in/${name} @ONLY CONTENT "#!/bin/sh
python=@PROJECT_SOURCE_DIR@/build/peers-venv/bin/python
[ -x \"$python\" ] || python=python3
exec \"$python\" @PROJECT_SOURCE_DIR@/bench/peers.py @name@
")
  file(COPY ${PROJECT_BINARY_DIR}/peers.in/${name} DESTINATION ${PROJECT_BINARY_DIR}/peers
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
endforeach()

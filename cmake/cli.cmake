# SPDX-License-Identifier: Apache-2.0
# The quern command. It links the shared library, so a symbol that is not public does not link, and
# it sees the public headers only. cJSON writes and reads its --json.

quern_glob(cli_sources cli)
if(NOT cli_sources)
  return()
endif()

find_package(PkgConfig REQUIRED)
pkg_check_modules(cjson IMPORTED_TARGET libcjson)
if(NOT cjson_FOUND)
  if(CMAKE_CROSSCOMPILING)
    message(STATUS "quern: no libcjson for ${CMAKE_SYSTEM_PROCESSOR}, the command is left out")
    return()
  endif()
  message(FATAL_ERROR "The quern command needs libcjson (Debian: libcjson-dev; `make` installs "
    "it). -DQN_CLI=OFF builds the library alone.")
endif()

add_executable(quern_cli ${cli_sources})
set_target_properties(quern_cli PROPERTIES OUTPUT_NAME quern
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
  INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
quern_code_options(quern_cli)
target_link_libraries(quern_cli PRIVATE quern PkgConfig::cjson Threads::Threads m)

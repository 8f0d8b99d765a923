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
set_source_files_properties(cli/ranks.c PROPERTIES COMPILE_DEFINITIONS
  "QUERN_MPI_FOLDER=\"../${CMAKE_INSTALL_LIBDIR}/quern/\"")
quern_code_options(quern_cli)
target_link_libraries(quern_cli PRIVATE quern PkgConfig::cjson Threads::Threads ${CMAKE_DL_LIBS} m)

# What joins the command to an MPI, a file for each that is there: the command loads one of them
# under its mpirun, and links none.
foreach(mpi openmpi mpich)
  string(REPLACE openmpi ompi-c package ${mpi})
  pkg_check_modules(${mpi} IMPORTED_TARGET ${package})
  if(${mpi}_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT QN_SANITIZE)
    add_library(quern_${mpi} MODULE cli/mpi/comm.c)
    set_target_properties(quern_${mpi} PROPERTIES PREFIX "" OUTPUT_NAME quern-${mpi}
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} C_VISIBILITY_PRESET hidden)
    quern_code_options(quern_${mpi})
    target_include_directories(quern_${mpi} PRIVATE include)
    target_include_directories(quern_${mpi} SYSTEM PRIVATE ${${mpi}_INCLUDE_DIRS})
    target_link_libraries(quern_${mpi} PRIVATE PkgConfig::${mpi})
  endif()
endforeach()

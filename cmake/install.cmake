# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` gives: both libraries, headers, pkg-config, find_package(quern), the
# command, its man page and its bash completion.

include(CMakePackageConfigHelpers)

file(GLOB public_headers CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/include/quern/*.h ${PROJECT_SOURCE_DIR}/include/quern/*.inc)
install(FILES ${public_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quern)
install(TARGETS quern quern_static EXPORT quern
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
install(EXPORT quern NAMESPACE quern:: FILE quernTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/quernConfig.cmake.in
  ${PROJECT_BINARY_DIR}/quernConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quernConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quernConfig.cmake ${PROJECT_BINARY_DIR}/quernConfigVersion.cmake
  DESTINATION ${package_dir})

# Relative to the .pc file, so that a moved or staged prefix still works.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
  OUTPUT_VARIABLE pc_libdir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
  OUTPUT_VARIABLE pc_includedir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE pc_prefix)
if(QN_CUDA_BUILT)
  set(pc_cuda " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/quern.pc.in ${PROJECT_BINARY_DIR}/quern.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET quern_ort)
  install(TARGETS quern_ort LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET quern_cli)
  foreach(mpi openmpi mpich)
    if(TARGET quern_${mpi})
      install(TARGETS quern_${mpi} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/quern)
    endif()
  endforeach()
  install(TARGETS quern_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/cli/quern.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${PROJECT_SOURCE_DIR}/cli/quern.bash RENAME quern
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()

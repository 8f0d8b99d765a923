# SPDX-License-Identifier: Apache-2.0
# What the Python package holds of this build: the library by its soname, the operators of torch and
# the command, side by side in quern/_native. Wheels keep no symbolic links. scikit-build-core asks
# for this component.

install(FILES $<TARGET_FILE:quern> RENAME $<TARGET_SONAME_FILE_NAME:quern>
  DESTINATION quern/_native COMPONENT python
  PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
install(TARGETS quern_torch LIBRARY DESTINATION quern/_native COMPONENT python)
if(TARGET quern_cli)
  set_target_properties(quern_cli PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  install(TARGETS quern_cli RUNTIME DESTINATION quern/_native COMPONENT python)
endif()
if(TARGET quern_ort)
  set_target_properties(quern_ort PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  install(TARGETS quern_ort LIBRARY DESTINATION quern/_native COMPONENT python)
endif()

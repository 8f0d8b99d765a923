# SPDX-License-Identifier: Apache-2.0
# libquern_torch.so: the operators of torch, over libquern.so beside it. It links nothing of torch,
# whose functions it looks up when the Python package asks it to.

file(GLOB torch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/torch/*.c)
add_library(quern_torch MODULE ${torch_sources})
quern_code_options(quern_torch)
target_compile_options(quern_torch PRIVATE -Wmissing-prototypes
  -fexceptions) # torch's exceptions go through
target_include_directories(quern_torch PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(quern_torch PRIVATE quern ${CMAKE_DL_LIBS})
set_target_properties(quern_torch PROPERTIES C_VISIBILITY_PRESET hidden
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN"
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

# SPDX-License-Identifier: Apache-2.0
# libquern_ort.so: the execution provider that ONNX Runtime loads (docs/onnxruntime.md). It sees the
# public headers alone and links libquern.so beside it; of ONNX Runtime it needs nothing.

quern_glob(ort_sources ort)
add_library(quern_ort MODULE ${ort_sources})
quern_code_options(quern_ort)
target_compile_options(quern_ort PRIVATE -Wmissing-prototypes -fno-math-errno -fno-trapping-math)
set_target_properties(quern_ort PROPERTIES C_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} INSTALL_RPATH "$ORIGIN")
target_link_libraries(quern_ort PRIVATE quern Threads::Threads m)
target_link_options(quern_ort PRIVATE LINKER:--as-needed)

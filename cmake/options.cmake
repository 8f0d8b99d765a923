# SPDX-License-Identifier: Apache-2.0
# How quern's own code is compiled, and how its sources are found.

# The .c files of each folder named, not of the folders below.
function(quern_glob out)
  set(found)
  foreach(folder IN LISTS ARGN)
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.c)
    list(APPEND found ${files})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# Everything written here, library or test. Contraction is off so that an fma happens only where one
# is written: the bits must not depend on what the compiler can fuse.
function(quern_code_options target)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11 C_EXTENSIONS OFF C_STANDARD_REQUIRED ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes>
    $<$<AND:$<BOOL:${QN_WERROR}>,$<COMPILE_LANGUAGE:C>>:-Werror>
    $<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>)
  if(QN_SANITIZE)
    set(flags -fsanitize=${QN_SANITIZE} -fno-omit-frame-pointer -g1)
    if(QN_SANITIZE MATCHES "undefined")
      list(APPEND flags -fno-sanitize-recover=undefined)
    endif()
    target_compile_options(${target} PRIVATE ${flags})
    target_link_options(${target} PUBLIC -fsanitize=${QN_SANITIZE})
  endif()
endfunction()

# What goes into libquern: hidden unless QN_API says otherwise, and position independent, because
# the same objects make the static and the shared library. errno and trapping only hinder the
# vectoriser; neither flag changes a value.
function(quern_library_options target)
  quern_code_options(${target})
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes -fno-math-errno -fno-trapping-math>)
  target_compile_definitions(${target} PRIVATE ${QN_ISA_DEFINES})
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()

# Tests and benchmarks see the internals: the same definitions and include paths as the library.
function(quern_internal_program target)
  quern_code_options(${target})
  target_compile_definitions(${target} PRIVATE ${QN_ISA_DEFINES})
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/test)
  target_link_libraries(${target} PRIVATE ${ARGN} quern_ref quern_static Threads::Threads m)
endfunction()

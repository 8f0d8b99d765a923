# SPDX-License-Identifier: Apache-2.0
#
# cmake -DSOURCE=... -DOUT=... -P commit.cmake: writes `#define QN_COMMIT "..."` to OUT, touching
# the file only when the text changes, so that a build without a new commit recompiles nothing.
# "unknown" when SOURCE is not itself the top of a git checkout (a tarball inside somebody's tree).

set(commit unknown)
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()

set(text "#define QN_COMMIT \"${commit}\"\n")
set(old)
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} ${text})
endif()

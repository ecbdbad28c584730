# cmake -DSOURCE=… -DCOMMAND=<compiler;and;arguments> -P check_errors.cmake: fails unless the compiler
# rejects SOURCE, reports each line that ends in "// error: text", and prints "text" somewhere. For lines
# that end in "// says: text" only the text is required.

execute_process(COMMAND ${COMMAND} "${SOURCE}"
  RESULT_VARIABLE result ERROR_VARIABLE said OUTPUT_QUIET)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiled")
endif()

get_filename_component(name "${SOURCE}" NAME)
file(READ "${SOURCE}" text)
string(REPLACE ";" " " text "${text}")
string(REPLACE "[" " " text "${text}")
string(REPLACE "]" " " text "${text}")
string(REPLACE "\n" ";" lines "${text}")
set(number 0)
foreach(line IN LISTS lines)
  math(EXPR number "${number} + 1")
  if(line MATCHES "// error: (.*)$")
    set(expectations "${name}:${number}:" "${CMAKE_MATCH_1}")
  elseif(line MATCHES "// says: (.*)$")
    set(expectations "${CMAKE_MATCH_1}")
  else()
    continue()
  endif()
  foreach(expected IN LISTS expectations)
    string(FIND "${said}" "${expected}" place)
    if(place EQUAL -1)
      message(FATAL_ERROR "expected \"${expected}\" among the errors, got\n${said}")
    endif()
  endforeach()
endforeach()

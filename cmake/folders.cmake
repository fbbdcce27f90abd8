# One CMake target a folder, and the only arrows allowed between folders.
#
# dsec_folder(<path> USES <folders...> LIBS <libraries...>) makes the library
# dsec_<path with _>, from every .cc beside it that is not a test, and one test
# program from every *_test.cc. tests/include_direction_test.py reads the USES
# of every folder from here and compares them with each #include.
function(dsec_folder path)
  cmake_parse_arguments(arg "SMALL" "" "USES;LIBS;TEST_USES;TEST_LIBS" ${ARGN})
  string(REPLACE "/" "_" name ${path})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${path}/*.cc
                                      ${CMAKE_SOURCE_DIR}/src/${path}/handlers/*.cc
                                      ${CMAKE_SOURCE_DIR}/src/${path}/loops/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(NOT sources)
    add_library(dsec_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(dsec_${name} STATIC ${sources})
    set(scope PUBLIC)
    if(NOT arg_SMALL)
      dsec_precompiled(dsec_${name})
    endif()
  endif()
  # For "…" only: <sys/mount.h> is the C library's, "sys/mount.h" is ours.
  target_compile_options(dsec_${name} ${scope} -iquote${CMAKE_SOURCE_DIR}/src)
  foreach(used ${arg_USES})
    string(REPLACE "/" "_" used_name ${used})
    target_link_libraries(dsec_${name} ${scope} dsec_${used_name})
  endforeach()
  target_link_libraries(dsec_${name} ${scope} ${arg_LIBS})
  if(DSEC_TESTS AND tests)
    add_executable(dsec_${name}_test ${tests})
    dsec_precompiled(dsec_${name}_test TEST)
    # Where a test finds the programs of this build, to run them for real.
    target_compile_definitions(dsec_${name}_test PRIVATE DSEC_TEST_BIN="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
    target_link_libraries(dsec_${name}_test PRIVATE dsec_${name} ${arg_TEST_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
    foreach(used ${arg_TEST_USES})
      string(REPLACE "/" "_" used_name ${used})
      target_link_libraries(dsec_${name}_test PRIVATE dsec_${used_name})
    endforeach()
    add_test(NAME unit.${path} COMMAND dsec_${name}_test)
    set_tests_properties(unit.${path} PROPERTIES LABELS unit TIMEOUT 600)
  endif()
endfunction()

# The headers of the libraries, parsed once: a third of a source's time went there.
#
# dsec_precompiled(<target> [TEST]) gives a target the common ones. Every source
# still includes what it uses: the tidy preset builds without, and fails if not.
set(common_headers <algorithm> <array> <atomic> <cerrno> <charconv> <chrono> <condition_variable> <cstdint> <cstring> <deque> <filesystem>
                   <fstream> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread> <utility> <variant> <vector>
                   <fmt/format.h> <fcntl.h> <unistd.h> <sys/stat.h> <sys/socket.h>
                   <boost/asio/as_tuple.hpp> <boost/asio/awaitable.hpp> <boost/asio/co_spawn.hpp> <boost/asio/detached.hpp>
                   <boost/asio/io_context.hpp> <boost/asio/ip/tcp.hpp> <boost/asio/local/stream_protocol.hpp> <boost/asio/post.hpp>
                   <boost/asio/steady_timer.hpp> <boost/asio/strand.hpp> <boost/asio/thread_pool.hpp> <boost/asio/use_awaitable.hpp>
                   <boost/json.hpp>)
function(dsec_precompiled target)
  if(NOT DSEC_PRECOMPILE)
    return()
  endif()
  set(kind common)
  if("TEST" IN_LIST ARGN)
    set(kind test)
  endif()
  if(NOT TARGET dsec_precompiled_${kind})
    file(WRITE ${CMAKE_BINARY_DIR}/precompiled_${kind}.cc "")
    add_library(dsec_precompiled_${kind} OBJECT ${CMAKE_BINARY_DIR}/precompiled_${kind}.cc)
    target_compile_options(dsec_precompiled_${kind} PRIVATE -Xclang -fno-pch-timestamp)
    set(headers ${common_headers})
    if(kind STREQUAL "test")
      list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
      target_link_libraries(dsec_precompiled_test PRIVATE GTest::gtest GTest::gmock)
    endif()
    target_precompile_headers(dsec_precompiled_${kind} PRIVATE ${headers})
  endif()
  target_compile_options(${target} PRIVATE -Xclang -fno-pch-timestamp)
  target_precompile_headers(${target} REUSE_FROM dsec_precompiled_${kind})
endfunction()

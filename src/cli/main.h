// Every verb of `dsec` that is a client of a server.
#pragma once

namespace dsec::cli {

// Returns the exit code. argv[1] is the verb.
int main(int argc, char** argv);

}  // namespace dsec::cli

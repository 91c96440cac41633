#include "cli/main.h"

int main(int argc, char** argv) {
  return weft::recipes::cli::main(argc, argv);
}

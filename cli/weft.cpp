#include "base/process.h"
#include "cli/main.h"

int main(int argc, char** argv) {
  weft::base::end_process(weft::cli::main(argc, argv));
}

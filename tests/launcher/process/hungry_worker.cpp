// A worker that takes all the memory it gets.
#include <string>
#include <vector>

int main() {
  std::vector<std::string> blocks;
  for (;;) {
    blocks.emplace_back(1 << 20, 'x');
  }
}

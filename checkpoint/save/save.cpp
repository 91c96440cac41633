#include "checkpoint/save/save.h"

#include "checkpoint/save/saver.h"
#include "checkpoint/save/state_items.h"

namespace weft::checkpoint {

std::filesystem::path save(
    const std::filesystem::path& checkpoints,
    const StateDicts& dicts,
    const SaveOptions& options) {
  Saver saver(
      checkpoints,
      {.world = find_world(list_items(dicts, "checkpoint.save"), options.world),
       .fsync = options.fsync});
  return saver.save(
      dicts,
      {.step = options.step, .state = options.state, .layout = options.layout});
}

} // namespace weft::checkpoint

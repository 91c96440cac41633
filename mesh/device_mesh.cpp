#include "mesh/device_mesh.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "mesh/error/error.h"

namespace weft::mesh {

// Note [Who owns a mesh]
// ~~~~~~~~~~~~~~~~~~~~~~
// create() makes a Root, which owns the groups and the states of all its slices
// and flattened meshes. Each state is made once. A DeviceMesh points to its
// state and shares ownership of the root. So equal meshes have the same state,
// a slice costs one look-up, and the extensions of a slice live as long as any
// mesh of the root.
struct DeviceMesh::State {
  Root* root = nullptr;
  /// The indices of the dims in the root. A flattened mesh has one dim, and the
  /// indices of the dims that it was made of.
  std::vector<int64_t> root_dims;
  bool is_flat = false;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int64_t> coordinate;
  std::vector<int64_t> ranks;
  std::vector<Communicator> groups;

  /// A node of the list of extensions. Nodes are only added, at the front.
  struct Extension {
    const std::type_info* type;
    std::shared_ptr<void> object;
    std::unique_ptr<Extension> next;
  };
  std::mutex extensions_mutex;
  std::unique_ptr<Extension> extensions;
  /// The head of the same list, for readers without the mutex.
  std::atomic<const Extension*> first_extension{nullptr};

  void* find_extension(const std::type_info& type) const {
    const auto* extension = first_extension.load(std::memory_order_acquire);
    while (extension && *extension->type != type) {
      extension = extension->next.get();
    }
    return extension ? extension->object.get() : nullptr;
  }

  ErrorContext describe() const;
  int64_t check_dim(int64_t mesh_dim) const;
};

struct DeviceMesh::Root {
  std::optional<World> world;
  /// The prefix of the groups' keys in the store.
  std::string scope;
  std::vector<int64_t> shape;
  std::vector<int64_t> coordinate;

  std::mutex mutex;
  using Key = std::tuple<std::vector<int64_t>, bool, std::string>;
  std::map<Key, std::unique_ptr<State>> states;
  std::map<std::vector<int64_t>, Communicator> flat_groups;

  int64_t rank() const { return world ? world->rank() : 0; }
  int64_t world_size() const { return world ? world->world_size() : 1; }
  std::vector<int64_t> ranks_along(const std::vector<int64_t>& dims) const;
  Communicator make_group(
      const std::string& name,
      const std::vector<int64_t>& dims) const;
};

namespace {

constexpr const char* kOp = "device_mesh";

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string joined;
  for (const auto& word : words) {
    joined += (joined.empty() ? "" : separator) + word;
  }
  return joined;
}

std::string format(
    const std::vector<std::string>& names,
    const std::vector<int64_t>& shape) {
  std::vector<std::string> words;
  for (size_t i = 0; i < shape.size(); ++i) {
    words.push_back(names[i] + "=" + std::to_string(shape[i]));
  }
  return join(words, " ");
}

void check_shape(
    const World& world,
    const std::vector<int64_t>& shape,
    const std::vector<std::string>& names) {
  const auto where = [&] {
    return ErrorContext{
        detail::concat("rank ", world.rank(), "/", world.world_size())};
  };
  WEFT_CHECK(
      shape.size() == names.size(),
      kOp,
      where(),
      "the number of mesh dims must equal the number of mesh dim names: ",
      shape.size(),
      " vs ",
      names.size(),
      ". Every mesh dim must have a name.");
  std::set<std::string> seen;
  for (size_t i = 0; i < shape.size(); ++i) {
    WEFT_CHECK(
        !names[i].empty(), kOp, where(), "Mesh dim ", i, " has an empty name.");
    WEFT_CHECK(
        seen.insert(names[i]).second,
        kOp,
        where(),
        "The name \"",
        names[i],
        "\" names two mesh dims.");
    WEFT_CHECK(
        1 <= shape[i],
        kOp,
        where(),
        "mesh dim \"",
        names[i],
        "\": got ",
        shape[i],
        " ranks, expected at least 1.");
  }
  WEFT_CHECK(
      product(shape) == world.world_size(),
      kOp,
      where(),
      "shape: got ",
      format(names, shape),
      " with ",
      product(shape),
      " ranks, expected the ",
      world.world_size(),
      " ranks of the world.");
}

std::vector<int64_t> coordinate_of(
    int64_t rank,
    const std::vector<int64_t>& shape) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    coordinate[i] = rank % shape[i];
    rank /= shape[i];
  }
  return coordinate;
}

} // namespace

ErrorContext DeviceMesh::State::describe() const {
  return {detail::concat(
      "rank ",
      root->rank(),
      "/",
      root->world_size(),
      ", mesh ",
      shape.empty() ? "of no dims" : format(names, shape))};
}

int64_t DeviceMesh::State::check_dim(int64_t mesh_dim) const {
  const auto ndim = static_cast<int64_t>(shape.size());
  WEFT_CHECK(
      mesh_dim >= 0 && mesh_dim < ndim,
      kOp,
      describe(),
      "Mesh dim ",
      mesh_dim,
      " does not exist; there are ",
      ndim,
      ".");
  return mesh_dim;
}

/// Returns the world ranks that share this rank's coordinates in all dims
/// except `dims`, row-major over `dims`.
std::vector<int64_t> DeviceMesh::Root::ranks_along(
    const std::vector<int64_t>& dims) const {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * shape[i];
  }
  int64_t base = rank();
  for (const int64_t dim : dims) {
    base -= coordinate[dim] * strides[dim];
  }
  std::vector<int64_t> ranks{base};
  for (const int64_t dim : dims) {
    std::vector<int64_t> longer;
    longer.reserve(ranks.size() * shape[dim]);
    for (const int64_t rank : ranks) {
      for (int64_t i = 0; i < shape[dim]; ++i) {
        longer.push_back(rank + i * strides[dim]);
      }
    }
    ranks = std::move(longer);
  }
  return ranks;
}

/// Creates the group over `dims`, "<name>/<its index among its siblings>".
/// Returns the world's group instead if `dims` cover the world.
Communicator DeviceMesh::Root::make_group(
    const std::string& name,
    const std::vector<int64_t>& dims) const {
  const auto ranks = ranks_along(dims);
  if (static_cast<int64_t>(ranks.size()) == world_size() && world_size() > 1) {
    return world->group();
  }
  int64_t index = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) {
      index = index * shape[dim] + coordinate[dim];
    }
  }
  return world->make_group(detail::concat(name, "/", index), ranks, scope);
}

DeviceMesh::DeviceMesh() {
  auto root = std::make_shared<Root>();
  auto state = std::make_unique<State>();
  state->root = root.get();
  state->ranks = {0};
  State* made = state.get();
  root->states.emplace(Root::Key{}, std::move(state));
  state_ = std::shared_ptr<State>(std::move(root), made);
}

DeviceMesh::DeviceMesh(std::shared_ptr<State> state)
    : state_(std::move(state)) {}

DeviceMesh DeviceMesh::create(
    const World& world,
    std::vector<int64_t> shape,
    std::vector<std::string> mesh_dim_names) {
  check_shape(world, shape, mesh_dim_names);
  world.check_agreement("device mesh", format(mesh_dim_names, shape));
  auto root = std::make_shared<Root>();
  root->world = world;
  root->scope = detail::concat("mesh", world.next_id());
  root->shape = std::move(shape);
  root->coordinate = coordinate_of(world.rank(), root->shape);

  auto state = std::make_unique<State>();
  state->root = root.get();
  state->shape = root->shape;
  state->names = std::move(mesh_dim_names);
  state->coordinate = root->coordinate;
  state->root_dims.resize(root->shape.size());
  std::iota(state->root_dims.begin(), state->root_dims.end(), 0);
  state->ranks = root->ranks_along(state->root_dims);
  for (const int64_t dim : state->root_dims) {
    state->groups.push_back(root->make_group(state->names[dim], {dim}));
  }
  State* made = state.get();
  root->states.emplace(
      Root::Key{state->root_dims, false, ""}, std::move(state));
  return DeviceMesh(std::shared_ptr<State>(std::move(root), made));
}

DeviceMesh DeviceMesh::from_group(
    const World& world,
    const Communicator& group,
    std::string mesh_dim_name) {
  const auto where = [&] {
    return ErrorContext{
        detail::concat("rank ", world.rank(), "/", world.world_size())};
  };
  WEFT_CHECK(
      !mesh_dim_name.empty(), kOp, where(), "The mesh dim has an empty name.");
  WEFT_CHECK(
      group.ranks().at(group.rank()) == world.rank(),
      kOp,
      where(),
      "group: \"",
      group.name(),
      "\" has rank ",
      group.ranks().at(group.rank()),
      " of a world for this process, which is rank ",
      world.rank(),
      " of the mesh's world. Pass a group of the same world.");
  auto root = std::make_shared<Root>();
  root->world = world;
  root->shape = {group.size()};
  root->coordinate = {group.rank()};

  auto state = std::make_unique<State>();
  state->root = root.get();
  state->root_dims = {0};
  state->shape = root->shape;
  state->names = {std::move(mesh_dim_name)};
  state->coordinate = root->coordinate;
  state->ranks = group.ranks();
  state->groups = {group};
  State* made = state.get();
  root->states.emplace(Root::Key{{0}, false, ""}, std::move(state));
  return DeviceMesh(std::shared_ptr<State>(std::move(root), made));
}

int64_t DeviceMesh::ndim() const {
  return static_cast<int64_t>(state_->shape.size());
}

int64_t DeviceMesh::size() const {
  return static_cast<int64_t>(state_->ranks.size());
}

int64_t DeviceMesh::size(int64_t mesh_dim) const {
  return state_->shape[state_->check_dim(mesh_dim)];
}

int64_t DeviceMesh::size(std::string_view mesh_dim) const {
  return state_->shape[this->mesh_dim(mesh_dim)];
}

const std::vector<int64_t>& DeviceMesh::shape() const {
  return state_->shape;
}

const std::vector<std::string>& DeviceMesh::mesh_dim_names() const {
  return state_->names;
}

bool DeviceMesh::has_mesh_dim(std::string_view name) const {
  const auto& names = state_->names;
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t DeviceMesh::mesh_dim(std::string_view name) const {
  const auto& names = state_->names;
  const auto found = std::find(names.begin(), names.end(), name);
  WEFT_CHECK(
      found != names.end(),
      kOp,
      state_->describe(),
      "No mesh dim is named \"",
      name,
      "\"; there is ",
      names.empty() ? "none" : join(names, ", "),
      ".");
  return found - names.begin();
}

int64_t DeviceMesh::coordinate(int64_t mesh_dim) const {
  return state_->coordinate[state_->check_dim(mesh_dim)];
}

int64_t DeviceMesh::coordinate(std::string_view mesh_dim) const {
  return state_->coordinate[this->mesh_dim(mesh_dim)];
}

int64_t DeviceMesh::rank() const {
  return state_->root->rank();
}

const std::vector<int64_t>& DeviceMesh::ranks() const {
  return state_->ranks;
}

Communicator& DeviceMesh::group(int64_t mesh_dim) const {
  return state_->groups[state_->check_dim(mesh_dim)];
}

Communicator& DeviceMesh::group(std::string_view mesh_dim) const {
  return state_->groups[this->mesh_dim(mesh_dim)];
}

DeviceMesh DeviceMesh::operator[](std::string_view mesh_dim) const {
  return slice({std::string(mesh_dim)});
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& mesh_dims) const {
  WEFT_CHECK(
      !mesh_dims.empty(),
      kOp,
      state_->describe(),
      "A slice must name a mesh dim.");
  std::vector<int64_t> dims;
  for (const auto& name : mesh_dims) {
    dims.push_back(mesh_dim(name));
    WEFT_CHECK(
        dims.size() == 1 || dims[dims.size() - 2] < dims.back(),
        kOp,
        state_->describe(),
        "A slice must name each mesh dim once and in the mesh's order; got ",
        join(mesh_dims, ", "),
        ".");
  }
  if (static_cast<int64_t>(dims.size()) == ndim()) {
    return *this;
  }
  Root& root = *state_->root;
  Root::Key key{{}, false, ""};
  for (const int64_t dim : dims) {
    std::get<0>(key).push_back(state_->root_dims[dim]);
  }
  const std::lock_guard lock(root.mutex);
  auto& slot = root.states[key];
  if (!slot) {
    slot = std::make_unique<State>();
    slot->root = &root;
    slot->root_dims = std::get<0>(key);
    slot->names = mesh_dims;
    for (const int64_t dim : dims) {
      slot->shape.push_back(state_->shape[dim]);
      slot->coordinate.push_back(state_->coordinate[dim]);
      slot->groups.push_back(state_->groups[dim]);
    }
    slot->ranks = root.ranks_along(slot->root_dims);
  }
  return DeviceMesh(std::shared_ptr<State>(state_, slot.get()));
}

DeviceMesh DeviceMesh::flatten(std::string name) const {
  const std::string joined = join(state_->names, "_");
  name = name.empty() ? joined : name;
  if (ndim() == 1 && name == joined) {
    return *this;
  }
  WEFT_CHECK(
      ndim() > 0, kOp, state_->describe(), "The mesh has no dim to flatten.");
  Root& root = *state_->root;
  const std::lock_guard lock(root.mutex);
  auto& slot = root.states[{state_->root_dims, true, name}];
  if (!slot) {
    auto group = root.flat_groups.find(state_->root_dims);
    if (group == root.flat_groups.end()) {
      auto made = ndim() == 1 ? state_->groups.front()
                              : root.make_group(joined, state_->root_dims);
      group = root.flat_groups.emplace(state_->root_dims, made).first;
    }
    auto state = std::make_unique<State>();
    state->root = &root;
    state->root_dims = state_->root_dims;
    state->is_flat = true;
    state->names = {std::move(name)};
    state->shape = {size()};
    state->ranks = state_->ranks;
    state->coordinate = {group->second.rank()};
    state->groups = {group->second};
    slot = std::move(state);
  }
  return DeviceMesh(std::shared_ptr<State>(state_, slot.get()));
}

DeviceMesh DeviceMesh::root() const {
  Root& root = *state_->root;
  Root::Key key{{}, false, ""};
  std::get<0>(key).resize(root.shape.size());
  std::iota(std::get<0>(key).begin(), std::get<0>(key).end(), 0);
  const std::lock_guard lock(root.mutex);
  return DeviceMesh(std::shared_ptr<State>(state_, root.states.at(key).get()));
}

const World& DeviceMesh::world() const {
  WEFT_CHECK(
      state_->root->world.has_value(),
      kOp,
      state_->describe(),
      "this mesh has no World, because it was created by DeviceMesh() without "
      "dims, like the mesh of a DTensor on no mesh. Use a mesh from "
      "DeviceMesh::create() or DeviceMesh::from_group().");
  return *state_->root->world;
}

std::string DeviceMesh::to_string() const {
  return format(state_->names, state_->shape);
}

std::string DeviceMesh::describe_rank() const {
  return state_->describe().text;
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return id() == other.id();
}

size_t DeviceMesh::hash() const {
  return std::hash<const void*>()(id());
}

const void* DeviceMesh::id() const {
  static const char kNoDims = 0;
  return state_->shape.empty() && !state_->root->world
             ? static_cast<const void*>(&kNoDims)
             : state_.get();
}

std::shared_ptr<void> DeviceMesh::find_or_make_extension(
    const std::type_info& type,
    const std::function<std::shared_ptr<void>()>& make) const {
  auto* found = state_->find_extension(type);
  if (!found) {
    const std::lock_guard lock(state_->extensions_mutex);
    found = state_->find_extension(type);
    if (!found) {
      auto object = make();
      found = object.get();
      state_->extensions = std::make_unique<State::Extension>(
          &type, std::move(object), std::move(state_->extensions));
      state_->first_extension.store(
          state_->extensions.get(), std::memory_order_release);
    }
  }
  // The mesh owns the extension. The result counts no reference, because every
  // op would pay for that.
  return {std::shared_ptr<void>(), found};
}

} // namespace weft::mesh

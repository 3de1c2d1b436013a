//! The simulated disk's directories: what they hold now and what of it is durable. Until a directory is flushed, each of
//! its changes may survive a power cut or not, alone; a rename survives whole or not at all.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::executor::World;

/// The root directory's id.
const ROOT: u64 = 0;

/// What a name stands for, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Dir(u64),
}

/// The entries of each directory, by its id.
type Dirs = BTreeMap<u64, BTreeMap<String, Node>>;

type Place = (u64, String);

enum Change {
    Add(Place, Node),
    Remove(Place),
    Move(Place, Place, Node),
}

impl Change {
    fn touches(&self, dir: u64) -> bool {
        match self {
            Self::Add(place, _) | Self::Remove(place) => place.0 == dir,
            Self::Move(from, to, _) => from.0 == dir || to.0 == dir,
        }
    }
}

/// The tree of names.
pub(super) struct Names {
    current: Dirs,
    durable: Dirs,
    /// Not yet durable, in order, each with its sequence.
    changes: Vec<(u64, Change)>,
}

fn error(kind: io::ErrorKind) -> io::Error {
    io::Error::from(kind)
}

impl Names {
    pub(super) fn new() -> Self {
        Self { current: Dirs::from([(ROOT, BTreeMap::new())]), durable: Dirs::new(), changes: Vec::new() }
    }

    fn place(&self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or_else(|| error(io::ErrorKind::InvalidInput))?;
        let parent = self.dir(path.parent().unwrap_or(Path::new("/")))?;
        Ok((parent, name.to_str().expect("simulated paths are UTF-8").to_owned()))
    }

    fn dir(&self, path: &Path) -> io::Result<u64> {
        match self.find(path)? {
            Node::Dir(id) => Ok(id),
            Node::File(_) => Err(error(io::ErrorKind::NotADirectory)),
        }
    }

    /// What stands at `path`.
    pub(super) fn find(&self, path: &Path) -> io::Result<Node> {
        let mut at = Node::Dir(ROOT);
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let Node::Dir(dir) = at else { return Err(error(io::ErrorKind::NotADirectory)) };
            let name = name.to_str().expect("simulated paths are UTF-8");
            at = *self.current[&dir].get(name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        }
        Ok(at)
    }

    /// The file at `path`.
    pub(super) fn file(&self, path: &Path) -> io::Result<u64> {
        match self.find(path)? {
            Node::File(id) => Ok(id),
            Node::Dir(_) => Err(error(io::ErrorKind::IsADirectory)),
        }
    }

    /// The entries of the directory at `path`, by name.
    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<(String, Node)>> {
        let dir = self.dir(path)?;
        Ok(self.current[&dir].iter().map(|(name, node)| (name.clone(), *node)).collect())
    }

    /// All files with their paths.
    pub(super) fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut files = Vec::new();
        let mut dirs = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, node) in &self.current[&dir] {
                match node {
                    Node::File(id) => files.push((path.join(name), *id)),
                    Node::Dir(id) => dirs.push((path.join(name), *id)),
                }
            }
        }
        files.sort();
        files
    }

    fn change(&mut self, sequence: u64, change: Change) {
        Self::apply(&mut self.current, &change);
        self.changes.push((sequence, change));
    }

    fn apply(dirs: &mut Dirs, change: &Change) {
        match change {
            Change::Add((dir, name), node) => {
                dirs.entry(*dir).or_default().insert(name.clone(), *node);
            }
            Change::Remove((dir, name)) => {
                dirs.entry(*dir).or_default().remove(name);
            }
            Change::Move((from, old), (to, new), node) => {
                dirs.entry(*from).or_default().remove(old);
                dirs.entry(*to).or_default().insert(new.clone(), *node);
            }
        }
    }

    /// Gives a new node a name; the name must be free.
    pub(super) fn add(&mut self, sequence: u64, path: &Path, node: Node) -> io::Result<()> {
        let place = self.place(path)?;
        if self.current[&place.0].contains_key(&place.1) {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        if let Node::Dir(id) = node {
            self.current.insert(id, BTreeMap::new());
        }
        self.change(sequence, Change::Add(place, node));
        Ok(())
    }

    /// Removes a file's name.
    pub(super) fn remove_file(&mut self, sequence: u64, path: &Path) -> io::Result<()> {
        self.file(path)?;
        let place = self.place(path)?;
        self.change(sequence, Change::Remove(place));
        Ok(())
    }

    /// Removes an empty directory.
    pub(super) fn remove_dir(&mut self, sequence: u64, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        if !self.current[&dir].is_empty() {
            return Err(error(io::ErrorKind::DirectoryNotEmpty));
        }
        let place = self.place(path)?;
        self.change(sequence, Change::Remove(place));
        Ok(())
    }

    /// Renames, replacing a file.
    pub(super) fn rename(&mut self, sequence: u64, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from)?;
        let (old, new) = (self.place(from)?, self.place(to)?);
        match (node, self.current[&new.0].get(&new.1)) {
            (_, Some(Node::Dir(_))) => return Err(error(io::ErrorKind::IsADirectory)),
            (Node::Dir(_), Some(Node::File(_))) => return Err(error(io::ErrorKind::NotADirectory)),
            _ => {}
        }
        self.change(sequence, Change::Move(old, new, node));
        Ok(())
    }

    /// A flush of the directory at `path` that began at `begun` has succeeded.
    pub(super) fn flush(&mut self, path: &Path, begun: u64) -> io::Result<()> {
        let dir = self.dir(path)?;
        let durable = &mut self.durable;
        self.changes.retain(|(sequence, change)| {
            let covered = *sequence <= begun && change.touches(dir);
            if covered {
                Self::apply(durable, change);
            }
            !covered
        });
        Ok(())
    }

    /// The power goes: any of the unflushed changes survive, in their order; with `in_order` only a prefix of them, as a
    /// journal keeps them.
    pub(super) fn power_cut(&mut self, world: &World, in_order: bool) {
        let keep = world.pick(&[0.0, 0.3, 0.5, 0.7, 1.0]);
        for (_, change) in std::mem::take(&mut self.changes) {
            if world.chance(keep) {
                Self::apply(&mut self.durable, &change);
            } else if in_order {
                break;
            }
        }
        for (dir, entries) in &mut self.current {
            *entries = self.durable.get(dir).cloned().unwrap_or_default();
        }
    }
}

//! The kept directories: `fixtures/healthy` as a whole, of each damaged one what differs from it. And what lies in the
//! healthy one, message by message.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use corelane_proto::message::{MESSAGE_BYTES_LIMIT, Message};
use corelane_proto::{set, wrapper};
use corelane_testkit::run_with_input;

use super::Got;

/// Files by their path below the directory.
pub(super) type Tree = BTreeMap<String, Vec<u8>>;

const REGISTRY: &str = "registry.redb";
const REGISTRY_PACKED: &str = "registry.redb.gz";
/// In a damaged directory: the files that it lacks, one a line.
const REMOVED: &str = "REMOVED";

pub(super) fn fixtures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The healthy directory.
pub(super) fn healthy() -> Tree {
    let mut tree = read_tree(&fixtures_dir().join("healthy"));
    let packed = tree.remove(REGISTRY_PACKED).expect("the registry is kept");
    tree.insert(REGISTRY.to_owned(), gzip(&["-dc"], &packed));
    tree
}

/// Keeps a directory as the healthy one.
pub(super) fn keep_healthy(mut tree: Tree) {
    let registry = tree.remove(REGISTRY).expect("a broker's registry");
    tree.insert(REGISTRY_PACKED.to_owned(), gzip(&["-9nc"], &registry));
    replace(&fixtures_dir().join("healthy"), &tree);
}

fn gzip(args: &[&str], input: &[u8]) -> Vec<u8> {
    run_with_input(Command::new("gzip").args(args), input, Duration::from_mins(1)).success().stdout
}

/// What is kept of the damaged directory `name`.
pub(super) fn kept_damage(name: &str) -> Tree {
    let dir = fixtures_dir().join("damaged").join(name);
    assert!(dir.is_dir(), "there is no {}", dir.display());
    read_tree(&dir)
}

pub(super) fn keep_damage(name: &str, damage: &Tree) {
    replace(&fixtures_dir().join("damaged").join(name), damage);
}

/// The damaged directory `name`, whole.
pub(super) fn damaged(name: &str) -> Tree {
    let mut tree = healthy();
    let mut damage = kept_damage(name);
    if let Some(removed) = damage.remove(REMOVED) {
        for path in String::from_utf8(removed).expect("a list of paths").lines() {
            tree.remove(path).expect("what is removed was there");
        }
    }
    tree.extend(damage);
    tree
}

/// What has to be kept of `tree` beside the healthy directory.
pub(super) fn difference(healthy: &Tree, tree: &Tree) -> Tree {
    let changed = tree.iter().filter(|(path, content)| healthy.get(*path) != Some(content));
    let mut difference: Tree = changed.map(|(path, content)| (path.clone(), content.clone())).collect();
    let removed: Vec<&str> = healthy.keys().filter(|path| !tree.contains_key(*path)).map(String::as_str).collect();
    if !removed.is_empty() {
        difference.insert(REMOVED.to_owned(), (removed.join("\n") + "\n").into_bytes());
    }
    difference
}

/// Writes a tree into a directory, which is made.
pub(super) fn lay(tree: &Tree, dir: &Path) {
    for (path, content) in tree {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a directory")).expect("a directory can be made");
        fs::write(path, content).expect("a file can be written");
    }
}

fn replace(dir: &Path, tree: &Tree) {
    if dir.exists() {
        fs::remove_dir_all(dir).expect("an old fixture can be removed");
    }
    lay(tree, dir);
}

/// Every file below a directory.
pub(super) fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(root).expect("it lies below").to_str().expect("a plain name").to_owned();
            tree.insert(name, fs::read(&path).expect("a file can be read"));
        }
    }
    tree
}

/// A message as it lies in a segment of partition 0, a wrapper as one.
pub(super) struct Stored {
    /// The segment's path.
    pub(super) path: String,
    /// Where in it.
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// What a consumer gets of it.
    pub(super) got: Vec<Got>,
}

/// The directory of a partition's files.
pub(super) fn partition_dir(tree: &Tree, partition: u32) -> String {
    let topic = tree.keys().find(|path| path.starts_with("orders~")).expect("a topic's directory");
    format!("{}/{partition}", topic.split('/').next().expect("a first part"))
}

/// The segments of a partition, in order.
pub(super) fn segments(tree: &Tree, partition: u32) -> Vec<String> {
    let dir = partition_dir(tree, partition);
    let is_segment = |path: &&String| path.starts_with(&dir) && is_log(path) && base_of(path).is_some();
    tree.keys().filter(is_segment).cloned().collect()
}

/// Whether a file is, or passes for, a segment.
pub(super) fn is_log(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "log")
}

/// The position in a segment's name.
fn base_of(path: &str) -> Option<u64> {
    path.rsplit('/').next()?.split_once('-')?.0.parse().ok()
}

/// The messages of a partition, in order.
pub(super) fn stored(tree: &Tree, partition: u32) -> Vec<Stored> {
    let mut all = Vec::new();
    for path in segments(tree, partition) {
        let base = base_of(&path).expect("a segment's name has its base");
        let content = &tree[&path];
        let mut offset = 0;
        for message in set::walk(content, MESSAGE_BYTES_LIMIT) {
            let message = message.expect("the healthy directory is healthy");
            let bytes = message.length() as usize;
            all.push(Stored { path: path.clone(), offset, bytes, got: got(&message, base + offset as u64) });
            offset += bytes;
        }
        assert_eq!(offset, content.len(), "{path} ends with a message");
    }
    all
}

fn got(message: &Message<'_>, id: u64) -> Vec<Got> {
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
    if !message.codec().is_wrapper() {
        return vec![(id, text(message.value()))];
    }
    let inside = wrapper::unwrap(message, MESSAGE_BYTES_LIMIT).expect("a healthy set");
    let messages = set::walk(&inside, MESSAGE_BYTES_LIMIT).map(|message| text(message.expect("a message").value()));
    messages.enumerate().map(|(index, value)| (id + index as u64, value)).collect()
}

//! How each damaged directory follows from the healthy one. `CORELANE_MAKE_FIXTURES=damaged` writes them anew.

use super::fixture::{
    Stored, Tree, damaged, difference, fixtures_dir, healthy, keep_damage, kept_damage, partition_dir, segments, stored,
};

/// The name of the directory, and what is done to a healthy one.
type Recipe = (&'static str, fn(&mut Tree));

pub(super) const RECIPES: [Recipe; 30] = [
    ("closed-value-bit", |tree| flip(tree, 1, 35, 1)),
    ("closed-length-bit", |tree| flip(tree, 1, 1, 0x40)),
    ("closed-zeroed", |tree| zero(tree, 6..7)),
    ("closed-truncated", |tree| {
        let path = segments(tree, 0)[1].clone();
        let half = tree[&path].len() / 2;
        tree.get_mut(&path).expect("a segment").truncate(half);
    }),
    ("closed-missing", |tree| {
        let path = segments(tree, 0)[1].clone();
        tree.remove(&path);
    }),
    ("closed-swapped", |tree| swap(tree, 1, 2)),
    ("closed-swapped-same-length", |tree| swap(tree, 0, 1)),
    ("closed-wrapper-bit", |tree| flip(tree, 5, 40, 8)),
    ("closed-newer-message", |tree| set_version(tree, 1, 9)),
    ("values-with-messages-hit", |tree| flip(tree, 8, 1, 0x40)),
    ("active-value-bit", |tree| flip(tree, 11, 35, 1)),
    ("active-last-bit", |tree| flip(tree, 14, 35, 1)),
    ("active-zeroed", |tree| zero(tree, 13..15)),
    ("active-truncated", |tree| {
        let Stored { path, offset, bytes, .. } = message(tree, 12);
        tree.get_mut(&path).expect("a segment").truncate(offset + bytes / 2);
    }),
    ("active-missing", |tree| {
        let path = segments(tree, 0)[3].clone();
        tree.remove(&path);
    }),
    ("active-newer-message", |tree| set_version(tree, 14, 9)),
    ("active-torn-tail", |tree| {
        // The first half of a message, as a crash leaves it.
        let Stored { path, offset, bytes, .. } = message(tree, 0);
        let half = tree[&path][offset..offset + bytes / 2].to_vec();
        let newest = segments(tree, 0)[3].clone();
        tree.get_mut(&newest).expect("a segment").extend(half);
    }),
    ("stray-files", |tree| {
        let dir = partition_dir(tree, 0);
        tree.insert(format!("{dir}/notes.txt"), b"not of the log\n".to_vec());
        tree.insert(format!("{dir}/00000000000000000000.log"), Vec::new());
        tree.insert(format!("{dir}/next.prepared"), Vec::new());
        tree.insert(summary(tree, 0), Vec::new());
        tree.insert("checkpoint-007".to_owned(), Vec::new());
        tree.insert("notes.txt".to_owned(), b"not of the broker\n".to_vec());
    }),
    ("summary-bit", |tree| flip_byte(tree, 0, 30, 1)),
    ("summary-of-another", |tree| {
        let second = tree[&summary(tree, 1)].clone();
        tree.insert(summary(tree, 0), second);
    }),
    ("checkpoint-bit", |tree| {
        // The one that tells of partitions.
        let longest = tree.iter().filter(|(path, _)| path.starts_with("checkpoint-")).max_by_key(|(_, c)| c.len());
        let path = longest.expect("a checkpoint").0.clone();
        tree.get_mut(&path).expect("a checkpoint")[40] ^= 1;
    }),
    ("topic-identity-bit", |tree| {
        let path = topic_identity(tree);
        tree.get_mut(&path).expect("an identity")[20] ^= 1;
    }),
    ("topic-identity-empty", |tree| {
        let path = topic_identity(tree);
        tree.insert(path, Vec::new());
    }),
    ("topic-of-newer-version", |tree| {
        let path = topic_identity(tree);
        edit_sealed(tree, &path, "\"format_version\":1", "\"format_version\":2");
    }),
    ("topic-of-another-id", |tree| {
        let path = topic_identity(tree);
        let short = path.split(['~', '/']).nth(1).expect("digits of the id").to_owned();
        edit_sealed(tree, &path, &format!("\"topic_id\":\"{short}"), "\"topic_id\":\"00000000");
    }),
    ("topic-unknown-to-the-registry", |tree| {
        let identity = topic_identity(tree);
        let short = identity.split(['~', '/']).nth(1).expect("digits of the id").to_owned();
        let segment = segments(tree, 1)[0].clone();
        let name = segment.rsplit('/').next().expect("a name").to_owned();
        tree.insert(format!("ghost~00000000/0/{name}"), tree[&segment].clone());
        let path = "ghost~00000000/identity".to_owned();
        tree.insert(path.clone(), tree[&identity].clone());
        edit_sealed(tree, &path, &format!("\"topic_id\":\"{short}"), "\"topic_id\":\"00000000");
        edit_sealed(tree, &path, "\"name\":\"orders\"", "\"name\":\"ghost\"");
    }),
    ("identity-missing", |tree| {
        tree.remove("identity");
    }),
    ("identity-bit", |tree| tree.get_mut("identity").expect("an identity")[20] ^= 1),
    ("identity-of-newer-version", |tree| {
        edit_sealed(tree, "identity", "\"format_version\":1", "\"format_version\":2");
    }),
    ("identity-of-another-cluster", |tree| {
        let text = String::from_utf8(tree["identity"].clone()).expect("text");
        let id = text.split("\"cluster_id\":\"").nth(1).expect("an id")[..32].to_owned();
        edit_sealed(tree, "identity", &id, &"0".repeat(32));
    }),
];

/// Message `number` of partition 0, a wrapper counted as one.
fn message(tree: &Tree, number: usize) -> Stored {
    stored(tree, 0).into_iter().nth(number).expect("there are so many")
}

fn flip(tree: &mut Tree, number: usize, at: usize, bits: u8) {
    let Stored { path, offset, .. } = message(tree, number);
    tree.get_mut(&path).expect("a segment")[offset + at] ^= bits;
}

fn zero(tree: &mut Tree, numbers: std::ops::Range<usize>) {
    for Stored { path, offset, bytes, .. } in numbers.map(|number| message(tree, number)).collect::<Vec<_>>() {
        tree.get_mut(&path).expect("a segment")[offset..offset + bytes].fill(0);
    }
}

/// Two segments of partition 0 change places.
fn swap(tree: &mut Tree, one: usize, other: usize) {
    let paths = segments(tree, 0);
    let (first, second) = (tree[&paths[one]].clone(), tree[&paths[other]].clone());
    tree.insert(paths[one].clone(), second);
    tree.insert(paths[other].clone(), first);
}

/// Another version under a checksum that holds.
fn set_version(tree: &mut Tree, number: usize, version: u8) {
    let Stored { path, offset, bytes, .. } = message(tree, number);
    let message = &mut tree.get_mut(&path).expect("a segment")[offset..offset + bytes];
    message[8] = version;
    let crc = crc32fast::hash(&message[8..]).to_le_bytes();
    message[4..8].copy_from_slice(&crc);
}

/// The summary of a segment of partition 0.
fn summary(tree: &Tree, segment: usize) -> String {
    let path = segments(tree, 0)[segment].replace(".log", ".summary");
    assert!(tree.contains_key(&path), "{path} was kept");
    path
}

fn flip_byte(tree: &mut Tree, segment: usize, at: usize, bits: u8) {
    let path = summary(tree, segment);
    tree.get_mut(&path).expect("a summary")[at] ^= bits;
}

fn topic_identity(tree: &Tree) -> String {
    partition_dir(tree, 0).replace("/0", "/identity")
}

/// Changes a file of JSON and the checksum in its second line.
fn edit_sealed(tree: &mut Tree, path: &str, from: &str, to: &str) {
    let text = String::from_utf8(tree[path].clone()).expect("text");
    let json = text.lines().next().expect("a first line");
    assert!(json.contains(from), "{path} has {from}: {json}");
    let json = json.replace(from, to);
    let crc = crc32fast::hash(json.as_bytes());
    tree.insert(path.to_owned(), format!("{json}\ncrc32 {crc:08x}\n").into_bytes());
}

#[test]
fn the_kept_directories_are_what_their_recipes_make() {
    let make = std::env::var_os("CORELANE_MAKE_FIXTURES").is_some_and(|what| what == "damaged");
    let healthy = healthy();
    for (name, recipe) in RECIPES {
        let mut tree = healthy.clone();
        recipe(&mut tree);
        let difference = difference(&healthy, &tree);
        assert!(!difference.is_empty(), "{name} changes something");
        if make {
            keep_damage(name, &difference);
        }
        assert!(kept_damage(name) == difference, "{name} is kept as its recipe makes it");
        assert!(damaged(name) == tree, "{name} can be put together again");
    }
    let kept = std::fs::read_dir(fixtures_dir().join("damaged")).expect("a directory").count();
    assert_eq!(kept, RECIPES.len(), "each kept directory has a recipe");
}

//! What a data directory promises, on real files.

use corelane_log::blocking::{BlockingDisk, run};
use corelane_log::config::TopicConfig;
use corelane_log::data_dir::{DataDir, DataDirError, FORMAT_VERSION, Identity, TopicIdentity};
use corelane_proto::ids::{TopicId, TopicName};

fn data_dir() -> (tempfile::TempDir, DataDir<BlockingDisk>) {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::new(BlockingDisk, dir.path());
    (dir, data)
}

fn topic(name: &str, id: u8) -> TopicIdentity {
    TopicIdentity {
        format_version: FORMAT_VERSION,
        topic_id: TopicId([id; 16]),
        name: TopicName::new(name).unwrap(),
        partitions: 3,
        config: TopicConfig::default(),
    }
}

fn identity() -> Identity {
    Identity {
        format_version: FORMAT_VERSION,
        cluster_id: "c".into(),
        broker_id: 1,
        uuid: "u".into(),
        starts: 1,
        registered: Some(2),
        registry_kind: "etcd".into(),
        registry_store: 0,
        registry_incarnation: 0,
        registry_revision: 0,
        window_max_ever: 16 << 20,
    }
}

#[test]
fn an_identity_lasts_and_a_damaged_or_newer_one_is_refused() {
    let (dir, data) = data_dir();
    assert!(run(data.identity()).unwrap().is_none());
    run(data.set_identity(&identity())).unwrap();
    assert_eq!(run(data.identity()).unwrap(), Some(identity()));

    run(data.set_identity(&Identity { format_version: FORMAT_VERSION + 1, ..identity() })).unwrap();
    assert!(matches!(run(data.identity()), Err(DataDirError::NewerFormat { found: 2, .. })));

    let path = dir.path().join("identity");
    let mut content = std::fs::read(&path).unwrap();
    content[20] ^= 1;
    std::fs::write(&path, content).unwrap();
    assert!(matches!(run(data.identity()), Err(DataDirError::Damaged { .. })));
}

#[test]
fn topics_are_found_with_their_partitions_and_strangers_are_left_alone() {
    let (dir, data) = data_dir();
    let path = run(data.put_topic(&topic("orders", 0xAB))).unwrap();
    assert_eq!(path.file_name().unwrap(), "orders~abababab");
    for name in ["0", "2", "10", "007", "x"] {
        std::fs::create_dir(path.join(name)).unwrap();
    }
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    std::fs::create_dir_all(dir.path().join("other~00000000/0")).unwrap();
    // A creation that was interrupted before it wrote anything.
    std::fs::create_dir(dir.path().join("unfinished~00000000")).unwrap();

    let found = run(data.topics()).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].identity.as_ref().unwrap(), &topic("orders", 0xAB));
    assert_eq!(found[0].partitions, [0, 2, 10]);
    assert!(matches!(found[1].identity, Err(DataDirError::Damaged { .. })));

    std::fs::rename(&path, dir.path().join("orders~cdcdcdcd")).unwrap();
    let found = run(data.topics()).unwrap();
    assert!(matches!(found[0].identity, Err(DataDirError::Misplaced { .. })));
}

#[test]
fn a_topic_is_brought_up_to_date_and_never_takes_anothers_directory() {
    let (_dir, data) = data_dir();
    let path = run(data.put_topic(&topic("orders", 1))).unwrap();
    let changed = TopicIdentity { partitions: 9, ..topic("orders", 1) };
    assert_eq!(run(data.put_topic(&changed)).unwrap(), path);
    assert_eq!(run(data.topics()).unwrap()[0].identity.as_ref().unwrap().partitions, 9);

    // What a newer version has noted is not overwritten.
    let newer = TopicIdentity { format_version: FORMAT_VERSION + 1, ..changed };
    run(data.put_topic(&newer)).unwrap();
    assert!(matches!(run(data.put_topic(&topic("orders", 1))), Err(DataDirError::NewerFormat { found: 2, .. })));
    std::fs::remove_dir_all(&path).unwrap();
    run(data.put_topic(&topic("orders", 1))).unwrap();

    // The same first 8 digits, another id.
    let mut other = topic("orders", 1);
    other.topic_id.0[15] = 2;
    assert!(matches!(run(data.put_topic(&other)), Err(DataDirError::Misplaced { .. })));
    assert!(matches!(run(data.delete_topic(&other.name, other.topic_id)), Err(DataDirError::Misplaced { .. })));
    assert_eq!(run(data.topics()).unwrap().len(), 1);
}

#[test]
fn a_deleted_topic_is_gone_at_once_and_removed_later() {
    let (dir, data) = data_dir();
    let path = run(data.put_topic(&topic("orders", 1))).unwrap();
    std::fs::create_dir(path.join("0")).unwrap();
    std::fs::write(path.join("0/x.log"), b"x").unwrap();
    run(data.delete_topic(&TopicName::new("orders").unwrap(), TopicId([1; 16]))).unwrap();
    assert!(run(data.topics()).unwrap().is_empty());
    // A second call, after a crash say, finds nothing to do.
    run(data.delete_topic(&TopicName::new("orders").unwrap(), TopicId([1; 16]))).unwrap();
    assert_eq!(run(data.remove_deleted()).unwrap(), 1);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

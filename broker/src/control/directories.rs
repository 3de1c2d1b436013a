//! The topics' directories on this broker's disk against the topics that the registry knows: those of no topic that it knows are
//! kept, not served, and named. Pure but for the log and the look whether they are there still.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use corelane_log::blocking::{self, BlockingDisk};
use corelane_log::data_dir::DataDir;
use corelane_proto::ids::{TopicId, TopicName};

use super::Control;
use super::hosted::Hosted;
use crate::registry::store::Store;
use crate::registry::view::View;

/// So many of them are told on one page; the others are counted.
const TOLD_MAX: usize = 10;

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    /// Which topic they are, they do not say, or not in a way that can be believed.
    unclear: Vec<PathBuf>,
    /// By topic, those found at start and those of topics that the registry forgot since.
    of_topics: BTreeMap<TopicId, (TopicName, PathBuf)>,
    /// Named in the log already.
    named: BTreeSet<TopicId>,
}

impl Directories {
    /// Those of topics that the registry does not know, and that nobody serves.
    fn strangers(&self, view: &View, hosted: &Hosted) -> BTreeMap<TopicId, &(TopicName, PathBuf)> {
        let known: BTreeSet<TopicId> = view.topics.values().map(|topic| topic.record.topic_id).collect();
        let is_known = |id: &TopicId| known.contains(id) || view.deleted.contains_key(id) || hosted.contains_key(id);
        self.of_topics.iter().filter(|(id, _)| !is_known(id)).map(|(id, found)| (*id, found)).collect()
    }
}

impl<S: Store> Control<S> {
    /// Notes what lies there at start.
    pub(super) fn find_directories(&self, dir: &DataDir<BlockingDisk>) {
        let found = match blocking::run(dir.topics()) {
            Ok(found) => found,
            Err(error) => return tracing::error!(%error, "the topics' directories could not be listed"),
        };
        let mut directories = self.directories.borrow_mut();
        for topic in found {
            match topic.identity {
                Err(error) => {
                    let path = topic.path.display();
                    tracing::error!(%path, %error, "a directory is set aside: kept, not served");
                    directories.unclear.push(topic.path);
                }
                Ok(identity) => {
                    directories.of_topics.insert(identity.topic_id, (identity.name, topic.path));
                }
            }
        }
    }

    /// The registry has forgotten a topic that was served here.
    pub(super) fn note_forgotten(&self, topic_id: TopicId, name: &TopicName) {
        let path = DataDir::new(BlockingDisk, &self.config.data).topic_path(name, topic_id);
        let mut directories = self.directories.borrow_mut();
        directories.of_topics.insert(topic_id, (name.clone(), path));
        // Whoever notes it has named it.
        directories.named.insert(topic_id);
    }

    /// A topic's directory is deleted.
    pub(super) fn note_deleted(&self, topic_id: TopicId) {
        self.directories.borrow_mut().of_topics.remove(&topic_id);
    }

    /// Names in the log what is set aside by what was seen of the registry, each once until it is known again.
    pub(super) fn name_strangers(&self) {
        if self.standing.borrow().away.is_some() {
            return;
        }
        let mut directories = self.directories.borrow_mut();
        let strangers = directories.strangers(&self.view.borrow(), &self.hosted.borrow());
        for (topic_id, (name, path)) in strangers.iter().filter(|(id, _)| !directories.named.contains(id)) {
            let path = path.display();
            tracing::error!(%path, %name, %topic_id, "the registry does not know this topic: its directory is set aside, kept, not served");
        }
        directories.named = strangers.into_keys().collect();
    }

    /// How many are set aside, and what to say of them to whoever looks.
    pub(super) fn directories_set_aside(&self) -> (u64, Vec<String>) {
        let directories = self.directories.borrow();
        let unclear = directories.unclear.iter().filter(|path| path.exists()).map(|path| {
            format!("the directory {} is set aside: the log says why it cannot be believed", path.display())
        });
        let strangers = if self.standing.borrow().away.is_some() {
            // Which topics there are, nobody knows now.
            BTreeMap::new()
        } else {
            directories.strangers(&self.view.borrow(), &self.hosted.borrow())
        };
        let strangers = strangers.values().filter(|(_, path)| path.exists()).map(|(name, path)| {
            let path = path.display();
            format!(
                "the registry does not know the topic {name}: its directory {path} is set aside, kept and not served; if it \
                 counts: corelane registry restore-from, else move it away"
            )
        });
        let mut told: Vec<String> = unclear.chain(strangers).collect();
        let count = told.len();
        told.truncate(TOLD_MAX);
        if count > TOLD_MAX {
            told.push(format!("{} more directories are set aside; the log names them", count - TOLD_MAX));
        }
        (count as u64, told)
    }
}

#[cfg(test)]
mod tests {
    use corelane_log::config::TopicConfig;

    use super::super::hosted::HostedTopic;
    use super::*;
    use crate::registry::records::{TombstoneRecord, TopicRecord};
    use crate::registry::view::Versioned;

    #[test]
    fn what_the_registry_knows_or_has_deleted_or_this_broker_serves_is_no_stranger() {
        let (id, name) = (|byte| TopicId([byte; 16]), TopicName::new("views").expect("a name"));
        let mut directories = Directories::default();
        for byte in 1..=4 {
            directories.of_topics.insert(id(byte), (name.clone(), PathBuf::from(format!("/data/views~{byte}"))));
        }
        let mut view = View::default();
        let record =
            TopicRecord { topic_id: id(1), partitions: 1, config: TopicConfig::default(), copy_of: Vec::new() };
        view.topics.insert(name.clone(), Versioned { record, revision: 1 });
        view.deleted.insert(id(2), TombstoneRecord { name: name.clone(), holders: vec![1] });
        let (config, partitions) = (TopicConfig::default(), BTreeMap::new());
        let hosted = Hosted::from([(id(3), HostedTopic { name, partition_count: 1, config, partitions })]);
        let strangers = |view: &View, hosted| directories.strangers(view, hosted).into_keys().collect::<Vec<_>>();
        assert_eq!(strangers(&view, &hosted), [id(4)]);
        assert_eq!(strangers(&View::default(), &Hosted::new()), [id(1), id(2), id(3), id(4)]);
    }
}

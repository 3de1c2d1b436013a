//! What a topic is an exact copy of: the cluster keeps it with the topic, since the messages of an exact copy are the
//! original's own and carry nothing of it. Pure.

use corelane_client::TopicInfo;

/// One step of the way that a log has come as a whole: `CLUSTER/TOPIC/TOPIC-ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step<'a> {
    pub(super) cluster: &'a str,
    pub(super) topic: &'a str,
    /// The short form of the topic's id.
    pub(super) topic_id: &'a str,
}

impl<'a> Step<'a> {
    /// `None`: it was not written by a mirror.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split('/');
        let step = Self { cluster: parts.next()?, topic: parts.next()?, topic_id: parts.next()? };
        parts.next().is_none().then_some(step)
    }
}

/// What an exact copy of this topic of this cluster is a copy of, the first original first.
pub(super) fn of_copy(cluster: &str, source: &TopicInfo) -> Vec<String> {
    let last = format!("{cluster}/{}/{}", source.name, source.topic_id.short());
    source.copy_of.iter().cloned().chain([last]).collect()
}

/// The original of such a copy, or a copy on its way, that lies in this cluster.
pub(super) fn step_in<'a>(copy_of: &'a [String], cluster: &str) -> Option<Step<'a>> {
    copy_of.iter().filter_map(|step| Step::read(step)).find(|step| step.cluster == cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_copy_comes_from_both_clusters_and_from_no_other() {
        let copy_of = ["a/t/00c0ffee".to_owned(), "of somebody else".to_owned(), "b/a.t/0badcafe".to_owned()];
        let step = |cluster, topic, topic_id| Some(Step { cluster, topic, topic_id });
        assert_eq!(step_in(&copy_of, "a"), step("a", "t", "00c0ffee"));
        assert_eq!(step_in(&copy_of, "b"), step("b", "a.t", "0badcafe"));
        assert_eq!(step_in(&copy_of, "c"), None);
    }
}

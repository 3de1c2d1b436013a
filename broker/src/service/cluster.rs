//! Metadata, which every shard answers from what it was told last, and `DescribeCluster`.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use corelane_proto::pb;

use super::context::ShardContext;
use super::page::Room;
use super::topics::ask_control;
use crate::messages::{Failure, Metadata, ToControl};

/// Answers a Metadata request: all topics, or those named that exist.
pub fn metadata(context: &ShardContext, request: &pb::MetadataRequest) -> pb::MetadataResponse {
    select(&context.metadata(), request)
}

fn select(metadata: &Metadata, request: &pb::MetadataRequest) -> pb::MetadataResponse {
    let mut room = Room::new(request.limit);
    // No topic has an empty name, so that a request without one begins with the first.
    let behind = (Excluded(request.after.as_str()), Unbounded);
    let (topics, more) = if request.topics.is_empty() {
        let all = metadata.topics.range::<str, _>(behind);
        room.fill(all.map(|(_, topic)| pb::Topic::clone(topic)))
    } else {
        let names: BTreeSet<&str> = request.topics.iter().map(String::as_str).collect();
        let named = names.range::<str, _>(behind).filter_map(|name| metadata.topics.get(*name));
        room.fill(named.map(|topic| pb::Topic::clone(topic)))
    };
    pb::MetadataResponse { cluster_id: metadata.cluster_id.clone(), brokers: metadata.brokers.clone(), topics, more }
}

/// Answers a `DescribeCluster` request.
pub async fn describe_cluster(context: &ShardContext) -> Result<pb::DescribeClusterResponse, Failure> {
    ask_control(context, |answer| ToControl::DescribeCluster { answer }).await
}

/// Forgets a broker that will never come back.
pub async fn forget_broker(
    context: &ShardContext,
    request: pb::ForgetBrokerRequest,
) -> Result<pb::ForgetBrokerResponse, Failure> {
    ask_control(context, |answer| ToControl::ForgetBroker { request, answer }).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn metadata_tells_all_topics_or_those_named_that_exist_once_and_in_pages_if_asked() {
        let topic = |name: &str| (name.to_owned(), Arc::new(pb::Topic { name: name.to_owned(), ..Default::default() }));
        let metadata = Metadata { topics: [topic("a"), topic("b"), topic("c")].into(), ..Metadata::default() };
        let page = |asked: &[&str], limit, after: &str| {
            let topics = asked.iter().map(|name| (*name).to_owned()).collect();
            let answer = select(&metadata, &pb::MetadataRequest { topics, limit, after: after.to_owned() });
            (answer.topics.into_iter().map(|topic| topic.name).collect::<Vec<_>>().concat(), answer.more)
        };
        assert_eq!(page(&[], 0, ""), ("abc".to_owned(), false));
        assert_eq!(page(&["c", "missing", "a", "c"], 0, ""), ("ac".to_owned(), false));
        assert_eq!(page(&["missing"], 0, ""), (String::new(), false));
        assert_eq!(page(&[], 2, ""), ("ab".to_owned(), true));
        assert_eq!(page(&[], 2, "b"), ("c".to_owned(), false));
        assert_eq!(page(&["c", "a", "b"], 1, "a"), ("b".to_owned(), true));
        assert_eq!(page(&[], 2, "aa"), ("bc".to_owned(), false), "one that was deleted meanwhile");
    }
}

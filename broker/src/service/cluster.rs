//! Metadata, which every shard answers from what it was told last, and `DescribeCluster`.

use std::collections::BTreeSet;

use corelane_proto::pb;

use super::context::ShardContext;
use super::topics::ask_control;
use crate::messages::{Failure, Metadata, ToControl};

/// Answers a Metadata request: all topics, or those named that exist.
pub fn metadata(context: &ShardContext, request: &pb::MetadataRequest) -> pb::MetadataResponse {
    select(&context.metadata(), &request.topics)
}

fn select(metadata: &Metadata, names: &[String]) -> pb::MetadataResponse {
    let topics = if names.is_empty() {
        metadata.topics.values().map(|topic| pb::Topic::clone(topic)).collect()
    } else {
        let names: BTreeSet<&String> = names.iter().collect();
        names.into_iter().filter_map(|name| metadata.topics.get(name)).map(|topic| pb::Topic::clone(topic)).collect()
    };
    pb::MetadataResponse { cluster_id: metadata.cluster_id.clone(), brokers: metadata.brokers.clone(), topics }
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
    fn metadata_tells_all_topics_or_those_named_that_exist_once() {
        let topic = |name: &str| (name.to_owned(), Arc::new(pb::Topic { name: name.to_owned(), ..Default::default() }));
        let metadata = Metadata { topics: [topic("a"), topic("b"), topic("c")].into(), ..Metadata::default() };
        let names = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            select(&metadata, &asked).topics.into_iter().map(|topic| topic.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["a", "b", "c"]);
        assert_eq!(names(&["c", "missing", "a", "c"]), ["a", "c"]);
        assert!(names(&["missing"]).is_empty());
    }
}

//! Topic calls. What changes the registry is the control thread's: the shard hands the request on and waits beside its
//! connection. A trim concerns one partition's log and is done here.

use corelane_log::KeepError;
use corelane_proto::frame::Status;
use corelane_proto::ids::Position;
use corelane_proto::pb;
use tokio::sync::oneshot;

use super::context::ShardContext;
use super::locate::{closed, locate, out_of_range};
use super::stopping;
use crate::messages::{Answer, Failure, ToControl};

/// Creates a topic.
pub async fn create(
    context: &ShardContext,
    request: pb::CreateTopicRequest,
) -> Result<pb::CreateTopicResponse, Failure> {
    ask_control(context, |answer| ToControl::CreateTopic { request, answer }).await
}

/// Changes a topic's configuration.
pub async fn alter(context: &ShardContext, request: pb::AlterTopicRequest) -> Result<pb::AlterTopicResponse, Failure> {
    ask_control(context, |answer| ToControl::AlterTopic { request, answer }).await
}

/// Adds partitions to a topic.
pub async fn add_partitions(
    context: &ShardContext,
    request: pb::AddPartitionsRequest,
) -> Result<pb::AddPartitionsResponse, Failure> {
    ask_control(context, |answer| ToControl::AddPartitions { request, answer }).await
}

/// Begins a partition's log anew.
pub async fn accept_loss(
    context: &ShardContext,
    request: pb::AcceptLossRequest,
) -> Result<pb::AcceptLossResponse, Failure> {
    ask_control(context, |answer| ToControl::AcceptLoss { request, answer }).await
}

/// Deletes a topic.
pub async fn delete(
    context: &ShardContext,
    request: pb::DeleteTopicRequest,
) -> Result<pb::DeleteTopicResponse, Failure> {
    ask_control(context, |answer| ToControl::DeleteTopic { request, answer }).await
}

/// Describes a topic with the positions of its partitions, on whichever shards they lie.
pub async fn describe(
    context: &ShardContext,
    request: pb::DescribeTopicRequest,
) -> Result<pb::DescribeTopicResponse, Failure> {
    ask_control(context, |answer| ToControl::DescribeTopic { request, answer }).await
}

/// Moves a partition's start up.
pub async fn trim(context: &ShardContext, request: &pb::TrimTopicRequest) -> Result<pb::TrimTopicResponse, Failure> {
    let (_, partition) = locate(context, &request.topic_id, request.partition, request.epoch)?;
    match partition.trim(Position(request.position)).await {
        Ok(start) => Ok(pb::TrimTopicResponse { start: start.0 }),
        Err(KeepError::OutOfRange { start, end }) => Err(out_of_range(start.0, end.0)),
        Err(KeepError::Closed(reason)) => Err(closed(&reason)),
        Err(other) => Err(Failure::new(Status::Internal, other.to_string())),
    }
}

/// Hands a request to the control thread, unless too many wait for it already.
pub(super) async fn ask_control<T>(
    context: &ShardContext,
    message: impl FnOnce(Answer<Result<T, Failure>>) -> ToControl,
) -> Result<T, Failure> {
    let (answer, answered) = oneshot::channel();
    context.control.try_send(message(answer)).map_err(|error| match error {
        async_channel::TrySendError::Full(_) => {
            Failure::new(Status::Busy, "too many topic calls are under way; try again after a pause")
        }
        async_channel::TrySendError::Closed(_) => stopping(),
    })?;
    answered.await.map_err(|_| stopping())?
}

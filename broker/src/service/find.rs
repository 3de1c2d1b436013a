//! FindMessage: from what a consumer knows (an age, a time, a number) to a position in the log.

use corelane_log::Target;
use corelane_proto::ids::Position;
use corelane_proto::pb;
use corelane_proto::pb::find_message_request::Target as Asked;

use super::context::ShardContext;
use super::invalid_field;
use super::locate::{locate, read_failure};
use crate::messages::Failure;

/// Answers a `FindMessage`.
pub async fn find_message(
    context: &ShardContext,
    request: &pb::FindMessageRequest,
) -> Result<pb::FindMessageResponse, Failure> {
    let (_, partition) = locate(context, &request.topic_id, request.partition, request.epoch)?;
    let target = match request.target {
        Some(Asked::Earliest(true)) => Target::Earliest,
        Some(Asked::Latest(true)) => Target::Latest,
        Some(Asked::Containing(position)) => Target::Containing(Position(position)),
        Some(Asked::TimeMs(time_ms)) => Target::Time(time_ms),
        Some(Asked::LastMessages(count)) => Target::LastMessages(count),
        Some(Asked::GoodAfter(position)) => Target::GoodAfter(Position(position)),
        Some(Asked::Earliest(false) | Asked::Latest(false)) | None => {
            return Err(invalid_field("target", "say what is to be found"));
        }
    };
    let id = partition.find(target).await.map_err(|error| read_failure(&error))?;
    let bounds = partition.bounds();
    Ok(pb::FindMessageResponse {
        id: id.0,
        start: bounds.start.0,
        visible_end: bounds.visible_end.0,
        end: bounds.end.0,
    })
}

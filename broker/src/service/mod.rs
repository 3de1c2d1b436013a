//! What a broker does for each request, one file per family: each takes the request and the shard's state, and gives back
//! a reply. No sockets here: connections (shard/) call these functions and send what they return. Runs on the shard.

pub mod cluster;
pub mod context;
pub mod fetch;
pub mod find;
pub mod groups;
mod locate;
pub mod page;
pub mod publish;
pub mod topics;

use std::rc::Rc;

use corelane_proto::frame::{Method, Status};
use prost::Message;

use crate::messages::Failure;
use context::{Reply, ShardContext};

/// Answers a request that carries no payload and is neither Hello nor Fetch.
pub async fn call(context: Rc<ShardContext>, method: Method, proto: Vec<u8>) -> Reply {
    if context.is_stopping.get() {
        return stopping().into();
    }
    match method {
        Method::Metadata => parse(&proto).map(|request| cluster::metadata(&context, &request)).into(),
        Method::DescribeCluster => cluster::describe_cluster(&context).await.into(),
        Method::FindMessage => reply(&proto, async |request| find::find_message(&context, &request).await).await,
        Method::TrimTopic => reply(&proto, async |request| topics::trim(&context, &request).await).await,
        Method::CreateTopic => reply(&proto, async |request| topics::create(&context, request).await).await,
        Method::AlterTopic => reply(&proto, async |request| topics::alter(&context, request).await).await,
        Method::DeleteTopic => reply(&proto, async |request| topics::delete(&context, request).await).await,
        Method::DescribeTopic => reply(&proto, async |request| topics::describe(&context, request).await).await,
        Method::AddPartitions => reply(&proto, async |request| topics::add_partitions(&context, request).await).await,
        Method::AcceptLoss => reply(&proto, async |request| topics::accept_loss(&context, request).await).await,
        Method::ForgetBroker => reply(&proto, async |request| cluster::forget_broker(&context, request).await).await,
        other => Failure::new(Status::Unsupported, format!("this broker does not do {other:?} yet")).into(),
    }
}

async fn reply<Q, R>(proto: &[u8], answer: impl AsyncFnOnce(Q) -> Result<R, Failure>) -> Reply
where
    Q: Message + Default,
    R: Message,
{
    match parse(proto) {
        Ok(request) => answer(request).await.into(),
        Err(failure) => failure.into(),
    }
}

fn parse<Q: Message + Default>(proto: &[u8]) -> Result<Q, Failure> {
    Q::decode(proto).map_err(|_| Failure::new(Status::InvalidRequest, "the request message cannot be parsed"))
}

fn stopping() -> Failure {
    Failure::new(Status::Stopping, "this broker is stopping; use another one, or this one when it is back")
}

/// A field of a request that cannot be what it is.
pub(crate) fn invalid_field(field: &str, message: impl Into<String>) -> Failure {
    let mut failure = Failure::new(Status::InvalidRequest, message);
    failure.error.field = Some(field.to_owned());
    failure
}

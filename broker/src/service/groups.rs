//! Group calls: all of them are the control thread's, which speaks to the registry. The shard hands the request on as it came
//! and waits beside its connection, so that neither data nor other requests wait for it.

use std::rc::Rc;

use corelane_proto::frame::Method;

use super::context::{LongPolls, Reply, ShardContext};
use super::stopping;
use super::topics::ask_control;
use crate::messages::ToControl;

/// Whether a method is one of the groups'.
pub fn answers(method: Method) -> bool {
    (Method::JoinGroup..=Method::DeleteGroup).contains(&method)
}

/// Answers a group call of a client at this address, for a connection that counts its waits.
pub async fn call(context: Rc<ShardContext>, waits: LongPolls, method: Method, proto: Vec<u8>, host: String) -> Reply {
    if context.is_stopping.get() {
        return stopping().into();
    }
    // Not refused for their number, or members would be lost that are well: the control thread's calls are bounded.
    let _waiting = matches!(method, Method::Heartbeat | Method::Claim).then(|| context.count_long_poll(&waits));
    match ask_control(&context, |answer| ToControl::Group { method, proto, host, answer }).await {
        Ok(proto) => Reply::encoded(proto),
        Err(failure) => failure.into(),
    }
}

//! The methods and their numbers. A number is never reused; a new method gets the next one.

/// What a request asks for; the `code` of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
#[non_exhaustive]
pub enum Method {
    /// First on every connection: versions, and the shard wanted.
    Hello = 1,
    /// Brokers, topics, where each partition is served.
    Metadata = 2,
    /// Appends one message set, the frame's payload.
    Publish = 3,
    /// Reads a piece of a partition's log.
    Fetch = 4,
    /// Finds a position by age, by time or by number.
    FindMessage = 5,
    /// Creates a topic.
    CreateTopic = 6,
    /// Changes a topic's configuration.
    AlterTopic = 7,
    /// Deletes a topic and its data.
    DeleteTopic = 8,
    /// A topic's configuration and the state of its partitions.
    DescribeTopic = 9,
    /// Moves a partition's start up.
    TrimTopic = 10,
    /// Adds partitions to a topic.
    AddPartitions = 11,
    /// Joins a consumer group.
    JoinGroup = 12,
    /// Keeps a membership alive and waits for its next assignment.
    Heartbeat = 13,
    /// Leaves a consumer group.
    LeaveGroup = 14,
    /// Takes ownership of partitions that were assigned.
    Claim = 15,
    /// Gives ownership of partitions up.
    Release = 16,
    /// Commits positions of owned partitions.
    Commit = 17,
    /// Reads committed positions.
    Committed = 18,
    /// A group's members, assignment and positions.
    DescribeGroup = 19,
    /// The names of the groups.
    ListGroups = 20,
    /// Sets the committed positions of a group without members.
    ResetGroup = 21,
    /// Deletes a group without members.
    DeleteGroup = 22,
    /// The brokers and the registry.
    DescribeCluster = 23,
    /// Begins a partition's log anew after its data was lost.
    AcceptLoss = 24,
    /// Forgets a broker that will never come back.
    ForgetBroker = 25,
}

/// Every method in the order of its number.
const METHODS: [Method; 25] = [
    Method::Hello,
    Method::Metadata,
    Method::Publish,
    Method::Fetch,
    Method::FindMessage,
    Method::CreateTopic,
    Method::AlterTopic,
    Method::DeleteTopic,
    Method::DescribeTopic,
    Method::TrimTopic,
    Method::AddPartitions,
    Method::JoinGroup,
    Method::Heartbeat,
    Method::LeaveGroup,
    Method::Claim,
    Method::Release,
    Method::Commit,
    Method::Committed,
    Method::DescribeGroup,
    Method::ListGroups,
    Method::ResetGroup,
    Method::DeleteGroup,
    Method::DescribeCluster,
    Method::AcceptLoss,
    Method::ForgetBroker,
];

impl Method {
    /// Every method, in the order of their numbers.
    pub fn all() -> &'static [Method] {
        &METHODS
    }

    /// Its number on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }
}

/// A number that no method bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no method {0}")]
pub struct UnknownMethod(pub u16);

impl TryFrom<u16> for Method {
    type Error = UnknownMethod;
    fn try_from(code: u16) -> Result<Method, UnknownMethod> {
        code.checked_sub(1).and_then(|index| METHODS.get(usize::from(index))).copied().ok_or(UnknownMethod(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_numbers_are_pinned() {
        let numbered = METHODS.map(|method| format!("{} {method:?}", method.code())).join(", ");
        assert_eq!(
            numbered,
            "1 Hello, 2 Metadata, 3 Publish, 4 Fetch, 5 FindMessage, 6 CreateTopic, 7 AlterTopic, 8 DeleteTopic, \
             9 DescribeTopic, 10 TrimTopic, 11 AddPartitions, 12 JoinGroup, 13 Heartbeat, 14 LeaveGroup, 15 Claim, \
             16 Release, 17 Commit, 18 Committed, 19 DescribeGroup, 20 ListGroups, 21 ResetGroup, 22 DeleteGroup, \
             23 DescribeCluster, 24 AcceptLoss, 25 ForgetBroker"
        );
        for code in 0..=u16::MAX {
            match Method::try_from(code) {
                Ok(method) => assert_eq!(method.code(), code),
                Err(error) => assert!(error == UnknownMethod(code) && !(1..=25).contains(&code)),
            }
        }
    }
}

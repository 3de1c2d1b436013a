//! What the pages tell of groups. Members and owners are known anyway. Committed positions are not, and following them would
//! cost as much as committing them: they are read when somebody looks, and then not again for a while.

use std::rc::Rc;

use super::Groups;
use crate::limits::{LAG_POSITIONS_AGE, LAG_POSITIONS_MAX, LAG_POSITIONS_PART, LAG_POSITIONS_WAIT};
use crate::registry::groups::admin::GroupPosition;
use crate::registry::store::Store;
use crate::telemetry::snapshot::{GroupFigures, GroupsFigures};

impl<S: Store> Groups<S> {
    /// Everything but the lags, and the positions to compute these from.
    pub(crate) async fn figures(&self) -> (GroupsFigures, Rc<Vec<GroupPosition>>) {
        self.read_positions().await;
        let (state, positions) = (self.state.borrow(), self.positions.borrow());
        let groups = state.view.groups.iter().filter(|(_, group)| group.record.is_some());
        let groups = groups.map(|(name, group)| GroupFigures {
            name: name.clone(),
            members: group.members.len() as u64,
            partitions: group.target.len() as u64,
            unowned: group.target.keys().filter(|partition| !group.owners.contains_key(partition)).count() as u64,
            generation: group.generation(),
        });
        let figures = GroupsFigures {
            groups: groups.collect(),
            calls: self.calls.get() as u64,
            commits_waiting: self.commits.waiting_count() as u64,
            positions_age: positions.read_at.map(|at| self.now().saturating_sub(at)),
            is_partial: positions.is_partial,
            ..GroupsFigures::default()
        };
        (figures, Rc::clone(&positions.list))
    }

    /// Reads the committed positions, if that is due. When the registry does not answer, the older ones go on to be shown
    /// with their age.
    async fn read_positions(&self) {
        if self.state.borrow().view.groups.is_empty() {
            *self.positions.borrow_mut() = super::Positions::default();
            return;
        }
        let began = self.now();
        if began < self.positions.borrow().again_at {
            return;
        }
        // Whoever asks at the same time takes what there is.
        self.positions.borrow_mut().again_at = began + LAG_POSITIONS_WAIT;
        let reading = self.registry.all_committed(LAG_POSITIONS_MAX);
        let read = tokio::time::timeout(LAG_POSITIONS_WAIT, reading).await;
        let (now, mut positions) = (self.now(), self.positions.borrow_mut());
        positions.again_at = now + LAG_POSITIONS_AGE.max(now.saturating_sub(began) * LAG_POSITIONS_PART);
        match read {
            Ok(Ok((list, is_whole))) => {
                positions.list = Rc::new(list);
                positions.read_at = Some(began);
                positions.is_partial = !is_whole;
            }
            Ok(Err(error)) => tracing::debug!(%error, "committed positions could not be read for a page"),
            Err(_) => tracing::debug!("committed positions could not be read in time for a page"),
        }
    }
}

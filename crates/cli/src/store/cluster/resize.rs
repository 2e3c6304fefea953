//! Says how many members a group is to have: writes it into etcd. The group's primary does the
//! rest, whether this command waits for it or not.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use remora_cluster::{Configuration, EtcdMap, GroupView};
use remora_command::{output, stop};

use super::Resize;
use super::moves::{atlas, left_alone};

/// How often is looked how many members there are.
const LOOK: Duration = Duration::from_millis(200);

/// How far a group is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// It has the members that it is to have.
    Done,
    /// It has so many.
    Changes(usize),
    /// It has so many, and there are no nodes that could become members.
    Wants(usize),
}

fn progress(view: &GroupView, wanted: usize) -> Progress {
    let members = view.configuration.iter().flat_map(|latest| &latest.members);
    let count = members.clone().count();
    let is_spare = |node| members.clone().all(|member| member != node);
    let established = view.configuration.as_ref().is_some_and(Configuration::is_established);
    match count {
        _ if count == wanted && established => Progress::Done,
        _ if count < wanted && !view.nodes.keys().any(is_spare) => Progress::Wants(count),
        _ => Progress::Changes(count),
    }
}

impl Resize {
    pub(super) fn run(self) -> Result<ExitCode> {
        let stop = stop::on_signals()?;
        let Resize { members, group, no_wait, .. } = &self;
        let cluster = self.cluster.find()?;
        let view = || -> Result<GroupView> {
            let view = atlas(&cluster)?.groups.remove(group).unwrap_or_default();
            let (name, is_there) = (&cluster.name, view.configuration.is_some());
            ensure!(is_there, "{name} has no group {group}: start its nodes with --group {group}");
            Ok(view)
        };
        view()?;
        let at = cluster.endpoints.join(", ");
        let failed = |why| anyhow!("etcd at {at} cannot be used for resizing a group: {why}");
        EtcdMap::new(&cluster)?.resize(group, *members).map_err(failed)?;
        if *no_wait {
            return Ok(ExitCode::SUCCESS);
        }
        let mut before = None;
        loop {
            let now = progress(&view()?, usize::from(*members));
            match now {
                Progress::Done => return Ok(ExitCode::SUCCESS),
                Progress::Wants(count) => {
                    let missing = output::counted(u64::from(*members) - count as u64, "node");
                    println!(
                        "Group {group} has {count} of {members} members: start {missing} more."
                    );
                    return Ok(ExitCode::SUCCESS);
                }
                Progress::Changes(count) if before.as_ref() != Some(&now) => {
                    eprintln!("group {group} has {count} members, and is to have {members}");
                }
                Progress::Changes(_) => {}
            }
            before = Some(now);
            if stop.load(Ordering::Relaxed) {
                return Ok(left_alone());
            }
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use remora_cluster::{Address, NodeId};

    use super::*;

    #[test]
    fn a_group_changes_while_there_are_nodes_for_it() {
        let view = |members: &[u64], there: &[u64]| {
            let node = |number: &u64| NodeId(*number);
            let members = members.iter().map(node).collect();
            let at = Address::new(([127, 0, 0, 1], 7490).into());
            GroupView {
                configuration: Configuration::first(NodeId(1), members).ok(),
                nodes: there.iter().map(|number| (node(number), at.clone())).collect(),
                ..GroupView::default()
            }
        };
        assert_eq!(progress(&view(&[1, 2, 3], &[1, 2, 3]), 3), Progress::Done);
        assert_eq!(progress(&view(&[1, 2, 3], &[1, 2, 3]), 5), Progress::Wants(3));
        assert_eq!(progress(&view(&[1, 2, 3], &[1, 2, 3, 4]), 5), Progress::Changes(3));
        assert_eq!(progress(&view(&[1, 2, 3], &[1, 2]), 1), Progress::Changes(3));
    }
}

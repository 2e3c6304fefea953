//! Moves slots between a cluster's groups: writes into its map what is wanted. The groups'
//! primaries do the rest, whether this command waits for them or not.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use remora_cluster::etcd::EtcdGroup;
use remora_cluster::{Atlas, EtcdMap, MapService, MoveError, Owner, SlotMap};
use remora_command::{output, stop};
use remora_store::front::slots::Range;

use super::{ClusterArgs, Move};

/// How often is looked whether the slots are there.
const LOOK: Duration = Duration::from_millis(100);
/// How often the map is tried again where another command changes it meanwhile.
const TRIES: u32 = 10;

impl ClusterArgs {
    /// The cluster, in etcd.
    pub(super) fn find(&self) -> Result<EtcdGroup> {
        self.etcd.group(&self.name)
    }
}

/// The way to a cluster's map.
fn map(cluster: &EtcdGroup) -> Result<Asked> {
    Ok(Asked { map: EtcdMap::new(cluster)?, at: cluster.endpoints.join(", ") })
}

struct Asked {
    map: EtcdMap,
    at: String,
}

impl Asked {
    fn look(&mut self) -> Result<Atlas> {
        let at = &self.at;
        let failed = |why| anyhow!("etcd at {at} cannot be used for looking at the cluster: {why}");
        self.map.look().map_err(failed)
    }
}

/// A cluster as etcd knows it.
///
/// # Errors
/// etcd cannot be asked.
pub(super) fn atlas(cluster: &EtcdGroup) -> Result<Atlas> {
    map(cluster)?.look()
}

/// Has the map become what is wanted.
///
/// # Errors
/// etcd cannot be asked, or the map cannot become that.
pub(super) fn want(
    cluster: &EtcdGroup,
    next: impl Fn(&Atlas) -> Result<SlotMap, MoveError>,
) -> Result<()> {
    let mut asked = map(cluster)?;
    for _ in 0..TRIES {
        let atlas = asked.look()?;
        let next = next(&atlas)?;
        let at = &asked.at;
        let failed = |why| anyhow!("etcd at {at} cannot be used for moving slots: {why}");
        if asked.map.replace(atlas.revision, &next).map_err(failed)? {
            return Ok(());
        }
    }
    Err(anyhow!("others change the map of {} all the time: try again", cluster.name))
}

/// How many of these slots are not with the group yet.
///
/// # Errors
/// etcd cannot be asked, or the slots go elsewhere now.
pub(super) fn left(cluster: &EtcdGroup, slots: &[Range], to: &str) -> Result<usize> {
    let map = atlas(cluster)?.slots.unwrap_or_default();
    let all = slots.iter().flat_map(|range| range.first..=range.last);
    // (One that was lost goes to its group from that group.)
    let is_away = |it: &Owner| it.group != to || it.to.as_deref() == Some(to);
    let away: Vec<_> = all.filter(|slot| map.get(*slot).is_none_or(is_away)).collect();
    let is_coming = |slot| map.get(slot).is_some_and(|it| it.to.as_deref() == Some(to));
    let lost = away.iter().find(|slot| !is_coming(**slot));
    ensure!(lost.is_none(), "slot {} does not go to group {to} any more", lost.unwrap_or(&0));
    Ok(away.len())
}

impl Move {
    pub(super) fn run(self) -> Result<ExitCode> {
        let stop = stop::on_signals()?;
        let (cluster, slots) = (self.cluster.find()?, &self.slots.0);
        want(&cluster, |atlas| match self.lost {
            true => atlas.with_lost(slots, &self.to),
            false => atlas.with_move(slots, &self.to),
        })?;
        if self.no_wait {
            return Ok(ExitCode::SUCCESS);
        }
        let mut before = usize::MAX;
        loop {
            match left(&cluster, slots, &self.to)? {
                0 => return Ok(ExitCode::SUCCESS),
                now if now != before => {
                    let slots = output::counted(now as u64, "slot");
                    eprintln!("on the way to group {}: {slots}", self.to);
                    before = now;
                }
                _ => {}
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(left_alone());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// For a command that is told to stop before what it waits for has come about.
pub(super) fn left_alone() -> ExitCode {
    eprintln!("remora: the change goes on without this command");
    ExitCode::from(stop::BY_SIGNAL)
}

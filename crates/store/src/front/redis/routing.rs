//! Which requests are carried out here, and where clients ask instead: in a cluster, each key is
//! with one group of nodes at a time, and its primary serves it. `front/slots.rs` judges
//! (`Shard::judge`); here that becomes MOVED, ASK, TRYAGAIN or CROSSSLOT.

use crate::front::keyspace::{Cluster, ClusterGroup};
use crate::front::redis::command::{Call, Command, Done, READ, WRITE, Wrong};
use crate::front::redis::request::Arguments;
use crate::front::server_state::{ServerState, Turn};
use crate::front::slots::{Part, Verdict, Wanted, slot_of};
use crate::way::clock::now_ms;

const NO_PRIMARY: Wrong = Wrong::Is("CLUSTERDOWN The cluster has no primary at the moment");
const NOT_FOLLOWING: Wrong = Wrong::Is(
    "CLUSTERDOWN This node does not hear from its group's primary, or has none of its keys yet",
);
const ON_ITS_WAY: Wrong = Wrong::Is("TRYAGAIN A key is on its way to another node");
const NOT_SERVED: Wrong = Wrong::Is("CLUSTERDOWN Hash slot not served");

/// The keys among a command's arguments.
pub(super) fn keys_of<'a>(
    command: &Command,
    arguments: Arguments<'a>,
) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
    let (first, last, step) = command.keys;
    let len = arguments.len();
    let end = if last < 0 { len as i32 + last } else { last.min(len as i32 - 1) };
    let places = if first > 0 { first..end + 1 } else { 0..0 };
    places.step_by(step.max(1) as usize).map(move |place| arguments.at(place as usize))
}

/// Where the client has to ask instead, as this node is not the primary of its group. A backup does
/// not change anything; its own keys are shown by commands that name none.
pub(super) fn elsewhere(call: &Call<'_>, command: &Command) -> Option<Wrong> {
    let keeper = &call.turn.server.keeper;
    if !call.turn.is_elsewhere || !command.is_about_keys() {
        return None;
    }
    let Some(key) = keys_of(command, call.arguments).next() else {
        let readonly = Wrong::Is("READONLY You can't write against a read only replica.");
        return command.has(WRITE).then_some(readonly);
    };
    let (slot, cluster) = (slot_of(key), keeper.cluster().unwrap_or_default());
    Some(redirect("MOVED", slot, cluster.owner(slot)))
}

/// What a backup's own copy says, to a client that has asked for that (`READONLY`); nothing, if
/// this node cannot tell.
pub(super) fn read_copy(call: &mut Call<'_>, command: &Command) -> Option<Done> {
    let is_read = command.has(READ) && !command.has(WRITE) && call.state.transaction.is_none();
    let server = call.turn.server.clone();
    if !call.state.reads_copies || !is_read || server.used_database(0).is_none() {
        return None;
    }
    let mut slots = keys_of(command, call.arguments).map(slot_of);
    let slot = slots.next()?;
    if slots.any(|other| other != slot) {
        return None;
    }
    let start = call.reply.len();
    let done = run_copy(call, command.run);
    if server.keeper.is_readable(Some(slot)) {
        return Some(done);
    }
    call.reply.truncate(start);
    None
}

/// Looks at a backup's copy, while no transaction of the primary's is carried out there.
fn run_copy(call: &mut Call<'_>, run: impl Fn(&mut Call<'_>) -> Done) -> Done {
    let (server, mut done) = (call.turn.server.clone(), Ok(()));
    server.keeper.with_shard(&mut |_| done = run(call));
    done
}

/// Whether the command is about the keys of a node, whichever these are, and this node is no
/// primary: there is nothing to wait for, as its log is not its own.
pub(super) fn is_about_a_backup(call: &Call<'_>, command: &Command) -> bool {
    let is_about_a_node = command.has(READ) && !command.has(WRITE) && command.keys.0 == 0;
    is_about_a_node && call.turn.is_elsewhere && call.state.transaction.is_none()
}

/// What a backup has of its group's keys, as [`is_about_a_backup`] means it.
pub(super) fn own_copy(call: &mut Call<'_>, run: impl Fn(&mut Call<'_>) -> Done) -> Done {
    let (server, start) = (call.turn.server.clone(), call.reply.len());
    if server.used_database(0).is_none() {
        return Err(NOT_FOLLOWING);
    }
    let done = run_copy(call, run);
    if server.keeper.is_readable(None) {
        return done;
    }
    call.reply.truncate(start);
    Err(NOT_FOLLOWING)
}

/// A part of a command that is about the keys of this node, whichever these are, where the command
/// itself is not.
pub(super) fn run_about_a_node(call: &mut Call<'_>, run: impl Fn(&mut Call<'_>) -> Done) -> Done {
    if call.turn.is_elsewhere {
        return own_copy(call, run);
    }
    let what = What { writes: false, alone: false };
    let done = self::run(call, std::iter::empty(), what, run);
    see(call.turn, true);
    done
}

/// The turn's answers wait until what they say of keys is so for good.
pub(super) fn see(turn: &mut Turn, touches: bool) {
    if touches {
        turn.see_all();
    }
}

/// What a request is, as far as its place matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct What {
    pub(super) writes: bool,
    /// Whether nothing else may run meanwhile.
    pub(super) alone: bool,
}

/// Runs a request for these keys, or says where the client has to ask. What decided on that stays
/// so while it runs.
pub(super) fn run<'k>(
    call: &mut Call<'_>,
    keys: impl Iterator<Item = &'k [u8]> + Clone,
    what: What,
    mut run: impl FnMut(&mut Call<'_>) -> Done,
) -> Done {
    let server = call.turn.server.clone();
    let wanted = Wanted { writes: what.writes, is_asking: call.state.asks > 0 };
    let mut done = Ok(());
    server.keeper.with_shard(&mut |shard| {
        let Some(shard) = shard else {
            return server.enter(what.alone, || done = run(call));
        };
        let slot = keys.clone().next().map(slot_of);
        if slot.is_some() && slot == call.state.put_off {
            done = Err(ON_ITS_WAY);
            return;
        }
        // Where absence decides, nobody may change it, nor may time go back.
        let is_giving = slot.is_some_and(|slot| shard.is_giving(slot));
        server.enter(what.alone || is_giving, || {
            if is_giving {
                call.turn.now = call.turn.now.max(now_ms());
            }
            let (now, space) = (call.turn.now, server.used_database(0));
            let is_here = |key: &[u8]| {
                space.is_some_and(|space| server.keyspace.look(space, key, now).is_some())
            };
            done = match shard.judge_in(slot, keys.clone(), wanted, is_here) {
                Verdict::Here => run(call),
                Verdict::Ask(slot) => Err(ask(&server, slot, shard.part(slot))),
                Verdict::Moved(slot) => Err(moved(&server, slot)),
                Verdict::Split => {
                    call.state.put_off = slot;
                    Err(Wrong::Is("TRYAGAIN Multiple keys request during rehashing of slot"))
                }
                Verdict::InTransit => {
                    call.state.put_off = slot;
                    Err(ON_ITS_WAY)
                }
                Verdict::Crosses => {
                    Err(Wrong::Is("CROSSSLOT Keys in request don't hash to the same slot"))
                }
            };
        });
    });
    done
}

fn ask(server: &ServerState, slot: u16, part: Option<&Part>) -> Wrong {
    let cluster = server.keeper.cluster().unwrap_or_default();
    match part {
        Some(Part::Giving { to } | Part::Given { to }) => redirect("ASK", slot, cluster.group(to)),
        _ => NOT_SERVED,
    }
}

/// To the slot's owner, as far as this node has heard; that cannot be its own group, which has
/// just said that it is not.
fn moved(server: &ServerState, slot: u16) -> Wrong {
    let cluster: Cluster = server.keeper.cluster().unwrap_or_default();
    redirect("MOVED", slot, cluster.owner(slot).filter(|group| !group.is_mine))
}

fn redirect(how: &str, slot: u16, to: Option<&ClusterGroup>) -> Wrong {
    let primary = to.and_then(ClusterGroup::primary).filter(|node| !node.is_me);
    match primary.and_then(|node| node.address) {
        Some(address) => Wrong::says(format!("{how} {slot} {address}")),
        None if to.is_some() => NO_PRIMARY,
        None => NOT_SERVED,
    }
}

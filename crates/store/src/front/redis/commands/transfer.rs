//! What the primary of one group says to that of another one while slots move between them:
//! `CLUSTER TAKE | RETAKE | OWN | IMPORT`. docs/cluster.md says what that keeps.

use crate::front::keyspace::{Edit, Expiry, Transfer, TransferStep};
use crate::front::redis::command::{Call, Done, Wrong};
use crate::front::slots::{Part, Shard, Ticket, slot_of};

/// Arguments of an item: key, flags, when it ends in ms of Unix time or 0, value.
const ITEM: usize = 4;

/// `CLUSTER TAKE | RETAKE | OWN group ticket range …`.
pub(super) fn transfer(call: &mut Call<'_>) -> Done {
    let step = match () {
        () if call.is(1, "own") => TransferStep::Own,
        () if call.is(1, "retake") => TransferStep::Retake,
        () => TransferStep::Take,
    };
    let from = std::str::from_utf8(call.at(2)).map_err(|_| Wrong::Is("ERR no group's name"))?;
    let ticket = ticket(call, 3)?;
    let range = |text: &[u8]| String::from_utf8_lossy(text).parse();
    let ranges: Result<_, String> = call.arguments.from(4).map(range).collect();
    let ranges = ranges.map_err(|reason| Wrong::says(format!("ERR {reason}")))?;
    let asked = Transfer { step, from, ticket, ranges };
    let version = call.turn.server.keeper.transfer(&asked);
    let version = version.map_err(|reason| Wrong::says(format!("ERR {reason}")))?;
    call.turn.version = call.turn.version.max(version);
    call.reply.ok();
    Ok(())
}

/// `CLUSTER IMPORT ticket (key flags end value) …`: keys of a session, in the place of what is
/// there under their names.
pub(super) fn import(call: &mut Call<'_>) -> Done {
    if !(call.len() - 3).is_multiple_of(ITEM) {
        return call.arity();
    }
    let (ticket, server) = (ticket(call, 2)?, call.turn.server.clone());
    let mut done = Err(Wrong::Is("ERR this server is not a part of a cluster of several groups"));
    server.keeper.with_shard(&mut |shard| {
        let Some(shard) = shard else { return };
        done = if server.keeper.is_elsewhere() {
            Err(Wrong::Is("ERR this node is not the primary of its group"))
        } else {
            put_all(call, shard, ticket)
        };
    });
    done?;
    call.turn.see_all();
    call.reply.ok();
    Ok(())
}

fn ticket(call: &Call<'_>, index: usize) -> Result<Ticket, Wrong> {
    let ticket = String::from_utf8_lossy(call.at(index)).parse();
    ticket.map_err(|reason: String| Wrong::says(format!("ERR {reason}")))
}

fn put_all(call: &mut Call<'_>, shard: &Shard, ticket: Ticket) -> Done {
    let items = || (3..call.len()).step_by(ITEM);
    let is_expected = |slot| match shard.part(slot) {
        Some(Part::Taking { ticket: present, .. }) => *present == ticket,
        _ => false,
    };
    if !items().all(|at| is_expected(slot_of(call.at(at)))) {
        return Err(Wrong::Is("ERR the session of these keys is over: begin another one"));
    }
    for at in items().collect::<Vec<_>>() {
        let flags = u32::try_from(call.unsigned(at + 1)?);
        let flags = flags.map_err(|_| Wrong::Is("ERR flags have 32 bits"))?;
        let end = Some(call.unsigned(at + 2)?).filter(|end| *end > 0);
        let (key, value) = (call.at(at), call.at(at + 3));
        let expiry = Expiry::of_item(end);
        call.change(key, |_, _| Edit::Put { value, flags, expiry })?;
    }
    Ok(())
}

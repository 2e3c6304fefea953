//! Transactions: requests put aside and carried out together, if watched keys are as they were.
//! (`EXEC` itself stands in `session`, as it runs other commands.)

use crate::front::keyspace::Found;
use crate::front::redis::command::{Call, Done, Wrong};
use crate::front::redis::conversation::{Transaction, Watched};

/// `MULTI`.
pub(crate) fn multi(call: &mut Call<'_>) -> Done {
    if call.state.transaction.is_some() {
        return Err(Wrong::Is("ERR MULTI calls can not be nested"));
    }
    call.state.transaction = Some(Transaction::default());
    call.state.publish();
    call.reply.ok();
    Ok(())
}

/// `EXEC` where no transaction was begun.
pub(crate) fn exec_without(_: &mut Call<'_>) -> Done {
    Err(Wrong::Is("ERR EXEC without MULTI"))
}

/// `DISCARD`.
pub(crate) fn discard(call: &mut Call<'_>) -> Done {
    if call.state.transaction.take().is_none() {
        return Err(Wrong::Is("ERR DISCARD without MULTI"));
    }
    call.state.watched.clear();
    call.state.publish();
    call.reply.ok();
    Ok(())
}

/// The most keys that a connection may watch.
const MOST_WATCHED: usize = 65_536;

/// `WATCH key …`.
pub(crate) fn watch(call: &mut Call<'_>) -> Done {
    if call.state.transaction.is_some() {
        return Err(Wrong::Is("ERR WATCH inside MULTI is not allowed"));
    }
    let ts = call.ts()?;
    for key in call.arguments.from(1) {
        let is_new = |held: &Watched| held.ts != ts || held.key != key;
        if !call.state.watched.iter().all(is_new) {
            continue;
        }
        if call.state.watched.len() >= MOST_WATCHED {
            return Err(Wrong::Is("ERR too many watched keys: EXEC or UNWATCH first"));
        }
        let found = call.look(key)?;
        call.state.watched.push(Watched { ts, key: key.to_vec(), found });
    }
    call.state.publish();
    call.reply.ok();
    Ok(())
}

/// `UNWATCH`.
pub(crate) fn unwatch(call: &mut Call<'_>) -> Done {
    call.state.watched.clear();
    call.state.publish();
    call.reply.ok();
    Ok(())
}

/// Whether a watched key is another than it was. One that was only read is not.
pub(crate) fn is_disturbed(call: &Call<'_>) -> bool {
    let (keyspace, now) = (&call.turn.server.keyspace, call.turn.now);
    let changed = |found: Option<Found>| found.map(|it| (it.version, it.flags, it.expires_ms));
    call.state
        .watched
        .iter()
        .any(|held| changed(keyspace.look(held.ts, &held.key, now)) != changed(held.found))
}

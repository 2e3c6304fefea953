//! Destroys an object of a card, whatever it is: at the end of a session, and for a process that
//! leaves what it has not adopted.

use remora_nic::DestroyError;
use remora_nic::cm::SidrAnswer;
use remora_nic::cm::message::SidrStatus;
use remora_nic::kernel::Bound;

use crate::commands::Commands;
use crate::message::Object;

/// Destroys an object; one that has gone already is no error. Memory that is not the card's object
/// ([`Object::Dm`], [`Object::Lent`]) is left to the caller.
pub(crate) fn destroy(card: &mut impl Commands, object: Object) -> Result<(), DestroyError> {
    let destroyed = match object {
        Object::Connection(conn) => {
            // The peer learns of it, if the connection is one.
            card.disconnect(conn, &[]).ok();
            card.destroy_connection(conn).ok();
            Ok(())
        }
        Object::Listener(listener) => {
            card.unlisten(listener);
            Ok(())
        }
        Object::Sidr(sidr) => {
            // One that a peer has begun cannot be cancelled: nobody serves it any more.
            if card.cancel_sidr(sidr).is_err() {
                let status = SidrStatus::Unsupported;
                let no = SidrAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
                card.sidr_reply(sidr, no).ok();
            }
            Ok(())
        }
        Object::Qp(qpn) => {
            card.detach_all(qpn);
            for bound in [Bound::Send(qpn), Bound::Receive(qpn)] {
                card.unbind_kernel(bound).ok();
            }
            card.destroy_qp(qpn)
        }
        Object::Mr(key) => {
            card.unbind_kernel(Bound::Region(key)).ok();
            card.dereg_mr(key)
        }
        Object::Mw(key) => card.dealloc_mw(key),
        Object::Srq(srq) => card.destroy_srq(srq),
        Object::Cq(cq) => card.destroy_cq(cq),
        Object::Ah(ah) => card.destroy_ah(ah),
        Object::Budget(budget) => card.destroy_budget(budget),
        Object::Xrcd(xrcd) => card.dealloc_xrcd(xrcd),
        Object::Pd(pd) => card.dealloc_pd(pd),
        Object::Dm(_) | Object::Lent(_) => Ok(()),
    };
    match destroyed {
        Err(DestroyError::Unknown) => Ok(()),
        other => other,
    }
}

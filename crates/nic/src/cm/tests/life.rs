//! Signs of life of a peer's card.

use super::*;

/// A card is known by the mark in its GUID for as long as there is a connection with it, whatever
/// it offers.
#[test]
fn a_card_of_this_kind_is_known_by_its_guid() {
    for marked in [false, true] {
        let mut pair = Pair::new();
        if marked {
            pair.b.config.set_guid(2);
        }
        assert!(!pair.a.has_kin_at(ip(2)));
        pair.established();
        assert_eq!(pair.a.has_kin_at(ip(2)), marked);
        assert!(!pair.a.has_kin_at(ip(3)) && !pair.b.has_kin_at(ip(1)));
    }
}

/// A card at work answers by itself: its program sees nothing, and remembers nothing.
#[test]
fn a_card_at_work_answers_the_last_question() {
    let mut pair = Pair::new();
    assert!(!pair.a.has_answered(ip(2)));
    pair.a.ask_for_life(ip(2));
    let Message::SidrReq(first) = pair.a_to_b() else { panic!() };
    assert!(!pair.a.has_answered(ip(2)) && !pair.a.has_signs_of_life());
    let mut late = pair.b.poll_mad().unwrap();
    pair.a.ask_for_life(ip(2));
    let Message::SidrReq(second) = pair.a_to_b() else { panic!() };
    assert_ne!(first.request_id, second.request_id);
    // An answer to an earlier question says nothing of now, one from elsewhere nothing at all.
    pair.a.handle_mad(pair.now, ip(2), CM_QPN, late.bytes.as_slice());
    late = pair.b.poll_mad().unwrap();
    pair.a.handle_mad(pair.now, ip(3), CM_QPN, late.bytes.as_slice());
    assert!(!pair.a.has_answered(ip(2)) && !pair.a.has_answered(ip(3)));
    for _ in 0..2 {
        pair.a.handle_mad(pair.now, ip(2), CM_QPN, late.bytes.as_slice());
    }
    assert!(pair.a.has_answered(ip(2)));
    assert_eq!((pair.a.next_sign_of_life(), pair.a.next_sign_of_life()), (Some(ip(2)), None));
    assert!(events(&mut pair.a).is_empty() && events(&mut pair.b).is_empty());
    assert_eq!(pair.b.poll_timeout(), Time::NEVER);
}

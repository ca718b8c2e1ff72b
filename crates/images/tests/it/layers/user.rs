//! All other tests of layers as an ordinary user, if these run as root.

use crate::layers::harness::is_root;

#[test]
fn every_other_test_holds_for_an_ordinary_user_too() {
    if !is_root() {
        return;
    }
    fixtures::run_as_nobody("layers");
}

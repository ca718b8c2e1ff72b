//! WebSocket subprotocols: the server's own, and the one that carries the key of a page in a
//! browser.

use api::{SOCKET_KEY_PROTOCOL, SOCKET_PROTOCOL};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;

use crate::auth::Denied;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn offers(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

/// Moves a key from the offered subprotocols to the header in which other clients send it, so
/// that the same rules apply. It is removed from the offers.
///
/// # Errors
/// [`Denied`] for an offer that holds no key.
pub fn take_key(headers: &mut HeaderMap) -> Result<(), Denied> {
    let (keys, rest): (Vec<&str>, Vec<&str>) =
        offers(headers).partition(|offer| offer.get(..SOCKET_KEY_PROTOCOL.len()).is_some_and(is_key));
    if keys.is_empty() {
        return Ok(());
    }
    let keys: Vec<Option<HeaderValue>> = keys.into_iter().map(key).collect();
    let rest = HeaderValue::try_from(rest.join(", "));
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if let Ok(rest) = rest
        && !rest.is_empty()
    {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
    }
    for key in keys {
        let message = "the subprotocol `tidebox.key.…` does not hold the base64url of a key, without padding";
        headers.append(API_KEY, key.ok_or(Denied::of(message, None))?);
    }
    Ok(())
}

fn is_key(prefix: &str) -> bool {
    prefix.eq_ignore_ascii_case(SOCKET_KEY_PROTOCOL)
}

fn key(offer: &str) -> Option<HeaderValue> {
    let bytes = BASE64_URL.decode(offer.get(SOCKET_KEY_PROTOCOL.len()..)?).ok()?;
    let mut value = HeaderValue::from_bytes(&bytes).ok().filter(|_| !bytes.is_empty())?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns the selected subprotocol: the server's own, if it was offered.
pub fn selected(headers: &HeaderMap) -> Option<HeaderValue> {
    offers(headers).any(|offer| offer == SOCKET_PROTOCOL).then(|| HeaderValue::from_static(SOCKET_PROTOCOL))
}

#[cfg(test)]
mod test {
    use super::*;

    fn headers(offers: &[&str]) -> HeaderMap {
        offers.iter().map(|offer| (header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(offer).unwrap())).collect()
    }

    #[test]
    fn a_key_among_the_offers_is_moved_to_where_keys_are() {
        let key = format!("tidebox.key.{}", BASE64_URL.encode("s3cret"));
        for offered in [vec![format!("tidebox.v1, {key}")], vec![key.clone(), "tidebox.v1".to_owned()]] {
            let mut headers = headers(&offered.iter().map(String::as_str).collect::<Vec<_>>());
            take_key(&mut headers).unwrap();
            assert_eq!(headers["x-api-key"], "s3cret");
            assert!(headers["x-api-key"].is_sensitive());
            assert_eq!(headers["sec-websocket-protocol"], "tidebox.v1");
            assert_eq!(selected(&headers).unwrap(), "tidebox.v1");
        }
        let mut headers = headers(&[&key]);
        take_key(&mut headers).unwrap();
        assert!(selected(&headers).is_none() && !headers.contains_key("sec-websocket-protocol"));
    }

    #[test]
    fn two_keys_stay_two_keys() {
        let key = BASE64_URL.encode("a");
        let mut headers = headers(&[&format!("tidebox.key.{key}, tidebox.key.{key}")]);
        take_key(&mut headers).unwrap();
        assert_eq!(headers.get_all("x-api-key").iter().count(), 2);
    }

    #[test]
    fn an_offer_that_holds_no_key_is_refused_and_taken_out() {
        for bad in ["tidebox.key.", "tidebox.key.!!", "tidebox.key.YQ==", "tidebox.key.Cg", "TIDEBOX.key.*"] {
            let mut headers = headers(&["tidebox.v1", bad]);
            assert!(take_key(&mut headers).is_err(), "{bad}");
            assert_eq!(headers["sec-websocket-protocol"], "tidebox.v1");
            assert!(!headers.contains_key("x-api-key"));
        }
    }

    #[test]
    fn other_offers_are_left_alone_and_not_taken_up() {
        let mut headers = headers(&["chat, superchat"]);
        take_key(&mut headers).unwrap();
        assert_eq!(headers["sec-websocket-protocol"], "chat, superchat");
        assert!(selected(&headers).is_none());
    }
}

//! Sites: the fronts that one listener serves. The host of a request decides which one it is for. On the API's own
//! host the path does: for E2B's SDKs, and for previews where `server.path_proxy` says so.

use axum::Router;
use axum::http::Request;
use axum::response::{IntoResponse, Response};

use super::e2b::address::{self, Plane};
use super::error::{ApiError, Failure};
use super::preview::target::{self, Asked};

/// Front that a request is for; an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The API of the service.
    Api,
    /// A program in a sandbox, through the preview of a port.
    Preview,
    /// The control plane for E2B's SDKs.
    E2bControl,
    /// The data plane of a sandbox for E2B's SDKs.
    E2bData,
    /// The code interpreter of a sandbox for E2B's packages.
    E2bInterpreter,
}

/// Function that writes an error into its answer, which has the status already.
pub type Render = fn(&ApiError, &mut Response);

/// Renderers of the errors of each site.
#[derive(Debug, Clone, Copy)]
pub struct Renderers {
    pub(super) api: Render,
    pub(super) preview: Render,
    pub(super) e2b: Render,
    pub(super) e2b_interpreter: Render,
}

impl Renderers {
    /// Renders the error of an answer to a request for `site`; leaves other answers as they are.
    pub(super) fn render(&self, site: Site, response: &mut Response) {
        let Some(Failure(error)) = response.extensions().get().cloned() else { return };
        match site {
            Site::Api => (self.api)(&error, response),
            Site::Preview => (self.preview)(&error, response),
            Site::E2bControl | Site::E2bData => (self.e2b)(&error, response),
            Site::E2bInterpreter => (self.e2b_interpreter)(&error, response),
        }
    }
}

/// Routers for E2B's SDKs.
#[derive(Debug, Clone)]
pub struct E2bSites {
    pub(super) control: Router,
    pub(super) data: Router,
    pub(super) interpreter: Router,
}

/// Routers of the sites.
#[derive(Debug, Clone)]
pub struct Sites {
    pub(super) api: Router,
    pub(super) previews: Router,
    /// Routers for E2B's SDKs; `None` where the front is off.
    pub(super) e2b: Option<E2bSites>,
    pub(super) renderers: Renderers,
    /// Domain of the previews, in lower case.
    pub(super) domain: String,
    /// True if a path of the API's own host may stand for a port.
    pub(super) path_proxy: bool,
}

impl Sites {
    /// Returns the site of a request with its router. The request gets the site as an extension, and one
    /// to a preview its target.
    pub(super) fn select<B>(&self, request: &mut Request<B>) -> (Router, Site) {
        if let Some(found) = self.select_e2b(request) {
            return found;
        }
        let mut asked = target::of(request, &self.domain);
        if self.path_proxy {
            asked = asked.or_else(|| target::in_path(request.uri().path()));
        }
        let (router, site) = match asked {
            Some(asked) => {
                request.extensions_mut().insert(asked);
                (&self.previews, Site::Preview)
            }
            None => (&self.api, Site::Api),
        };
        request.extensions_mut().insert(site);
        (router.clone(), site)
    }

    /// Returns the site of a request of E2B's SDKs.
    fn select_e2b<B>(&self, request: &mut Request<B>) -> Option<(Router, Site)> {
        let e2b = self.e2b.as_ref()?;
        let (router, site) = match address::of(request, &self.domain)? {
            Plane::Control => (&e2b.control, Site::E2bControl),
            Plane::Data(addressed) => {
                request.extensions_mut().insert(addressed);
                (&e2b.data, Site::E2bData)
            }
            Plane::Interpreter(addressed) => {
                request.extensions_mut().insert(addressed);
                (&e2b.interpreter, Site::E2bInterpreter)
            }
            Plane::Port(target) => {
                request.extensions_mut().insert(Asked::Port(target));
                (&self.previews, Site::Preview)
            }
        };
        if site != Site::Preview {
            address::tidy(request.uri_mut());
        }
        request.extensions_mut().insert(site);
        Some((router.clone(), site))
    }

    /// Returns the answer to a request that is refused before it has a site.
    pub(super) fn refuse(&self, error: ApiError) -> Response {
        let mut response = error.into_response();
        self.renderers.render(Site::Api, &mut response);
        response
    }
}
